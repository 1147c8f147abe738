"use strict";
// Tables: sorting by a column, and a hint where a table is wider than the window.
const Tables = (() => {
  function sortable(table) {
    const body = table.tBodies[0], given = [...body.rows];
    [...table.tHead.rows[0].cells].forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.className = "sort";
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const next = { none: "ascending", ascending: "descending", descending: "none" }[head.getAttribute("aria-sort") ?? "none"];
        for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
        if (next !== "none") head.setAttribute("aria-sort", next);
        body.append(...(next === "none" ? given : sorted(given, column, next === "ascending" ? 1 : -1)));
      });
    });
  }

  function sorted(rows, column, sign) {
    const key = (row) => {
      const cell = row.cells[column];
      return cell.dataset.value === undefined ? cell.textContent : cell.dataset.value === "" ? null : Number(cell.dataset.value);
    };
    return [...rows].sort((a, b) => {
      const [u, v] = [key(a), key(b)];
      if (u === null || v === null) return (u === null) - (v === null); // missing values are last, both ways
      return sign * (typeof u === "number" && typeof v === "number" ? u - v : String(u).localeCompare(String(v), "en", { numeric: true }));
    });
  }

  function hints() {
    for (const box of document.querySelectorAll(".scroll")) {
      const left = box.scrollLeft > 2, right = box.scrollLeft + box.clientWidth < box.scrollWidth - 2;
      box.parentElement.classList.toggle("more-left", left);
      box.parentElement.classList.toggle("more-right", right);
    }
  }

  function start() {
    document.querySelectorAll("table.sortable").forEach(sortable);
    document.querySelectorAll(".scroll").forEach((box) => box.addEventListener("scroll", hints, { passive: true }));
    document.querySelectorAll("details").forEach((one) => one.addEventListener("toggle", hints));
    document.querySelectorAll("button[data-columns]").forEach((button) => button.addEventListener("click", () => {
      const all = document.getElementById(button.dataset.columns).classList.toggle("all");
      button.setAttribute("aria-pressed", String(all));
      hints();
    }));
    window.addEventListener("resize", hints);
    hints();
  }

  return { start, hints };
})();
