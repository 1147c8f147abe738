"use strict";
// The state of the controls, and drawing the figures again when it changes.
(() => {
  const { data, config, colour, dash, width } = Theme;
  const all = (selector) => [...document.querySelectorAll(selector)];
  const one = (selector) => document.querySelector(selector);
  const boxes = all("input[name=method]");
  const state = {
    axis: "rounds", view: "overlay", logX: false, logY: false, smoothing: 0, sort: "given", filter: "",
    order: data.methods.map((_, i) => i), hidden: new Set(),
  };

  // A report of a running comparison reloads itself; what the reader has chosen is kept meanwhile.
  const kept = "fedmos-report";
  function restore() {
    let saved = null;
    try { saved = data.live ? JSON.parse(sessionStorage.getItem(kept)) : null; } catch { saved = null; }
    if (saved === null) return;
    const choose = (name, value) => { const input = one(`[name=${name}][value="${value}"]`); if (input) input.checked = true; };
    choose("axis", saved.axis);
    choose("view", saved.view);
    one("[name=logX]").checked = saved.logX;
    one("[name=logY]").checked = saved.logY;
    one("[name=smoothing]").value = saved.smoothing;
    one("[name=sort]").value = saved.sort;
    one("[name=filter]").value = saved.filter;
    for (const box of boxes) {
      const label = data.methods[Number(box.value)];
      if (label in saved.picked) box.checked = saved.picked[label];
    }
  }
  function keep() {
    if (!data.live) return;
    const picked = Object.fromEntries(boxes.map((box) => [data.methods[Number(box.value)], box.checked]));
    const { axis, view, logX, logY, smoothing, sort, filter } = state;
    try { sessionStorage.setItem(kept, JSON.stringify({ axis, view, logX, logY, smoothing, sort, filter, picked })); } catch { /* not kept */ }
  }

  function read() {
    state.axis = one("input[name=axis]:checked").value;
    state.view = one("input[name=view]:checked").value;
    state.logX = one("[name=logX]").checked;
    state.logY = one("[name=logY]").checked;
    state.smoothing = Number(one("[name=smoothing]").value);
    state.sort = one("[name=sort]").value;
    state.filter = one("[name=filter]").value.trim().toLowerCase();
    state.hidden = new Set(boxes.filter((box) => !box.checked).map((box) => Number(box.value)));
    state.order = ordered();
    one("#smoothing-value").textContent = state.smoothing ? `${state.smoothing} % of the rounds` : "off";
  }

  function ordered() {
    const order = data.methods.map((_, i) => i), key = data.sort[state.sort];
    if (state.sort === "name") return order.sort((i, j) => data.methods[i].localeCompare(data.methods[j], "en", { numeric: true }));
    if (!key) return order;
    const sign = state.sort === "final" && !data.metrics[0].lower ? -1 : 1;
    return order.sort((i, j) => (key[i] === null) - (key[j] === null) || sign * (key[i] - key[j]) || i - j);
  }

  function list() {
    const place = one("#methods");
    const rows = new Map(boxes.map((box) => [Number(box.value), box.closest("label")]));
    const now = [...place.children];
    const order = state.order.map((i) => rows.get(i));
    if (now.some((row, k) => row !== order[k])) place.append(...order);
    rows.forEach((row, i) => { row.hidden = !data.methods[i].toLowerCase().includes(state.filter); });
    const drawn = boxes.length - state.hidden.size;
    all("#drawn-first").forEach((note) => { note.hidden = drawn === boxes.length; });
    one("#picked").textContent = drawn === boxes.length ? `all ${drawn}` : `${drawn} of ${boxes.length}`;
  }

  async function drawMetric(metric) {
    const gd = document.getElementById(`plot-${metric.name}`);
    const small = state.view === "multiples";
    gd.style.height = "";
    const [traces, figure] = small ? Curves.multiples(metric, state) : Curves.overlay(metric, state);
    if (small) gd.style.height = `${figure.height}px`;
    if (gd.dataset.view !== state.view && gd.dataset.view) Plotly.purge(gd);
    gd.dataset.view = state.view;
    await Plotly.react(gd, traces, figure, config);
    if (!small) await Curves.endLabels(gd, metric, state);
    const words = small ? "" : Curves.note(metric, state);
    const place = document.getElementById(`note-${metric.name}`);
    place.textContent = words;
    place.hidden = !words;
    if (!gd.dataset.watched) {
      gd.dataset.watched = "yes";
      Hover.attach(gd, metric, state);
    }
    if (!small) {
      gd.removeAllListeners("plotly_relayout");
      gd.on("plotly_relayout", (change) => {
        if (!("annotations" in change) && state.view === "overlay") Curves.endLabels(gd, metric, state);
      });
    }
  }

  let latest = 0; // a change while figures are drawn begins anew
  async function draw() {
    const own = (latest += 1);
    delete document.documentElement.dataset.drawn;
    read();
    list();
    keep();
    const others = [];
    if (data.split !== null) others.push(["plot-split", ...Figures.split()]);
    if (data.served.some((s) => s !== null)) others.push(["plot-served", ...Figures.served(state)]);
    if (document.getElementById("plot-spread")) others.push(["plot-spread", ...Figures.spread(state)]);
    if (data.gains !== null) others.push(["plot-gains", ...Figures.gains(state)]);
    if (document.getElementById("plot-traded")) others.push(["plot-traded", ...Figures.traded(state)]);
    if (document.getElementById("plot-chosen")) others.push(["plot-chosen", ...Figures.chosen(state)]);
    for (const metric of data.metrics) if (own === latest) await drawMetric(metric);
    for (const figure of others) if (own === latest) await Plotly.react(...figure, config);
    if (own === latest) document.documentElement.dataset.drawn = performance.now().toFixed(0);
  }

  function swatches() {
    boxes.forEach((box) => {
      const i = Number(box.value), line = box.closest("label").querySelector("line");
      line.setAttribute("stroke", colour(i));
      line.setAttribute("stroke-width", 2 * width(i));
      line.setAttribute("stroke-dasharray", dash(i) === "solid" ? "" : dash(i).replaceAll("px", "").replaceAll(",", " "));
    });
  }

  restore();
  all("input[name=axis], input[name=view], input[name=logX], input[name=logY], input[name=method], select[name=sort]")
    .forEach((input) => input.addEventListener("change", draw));
  one("[name=smoothing]").addEventListener("input", draw);
  one("[name=filter]").addEventListener("input", () => { read(); list(); keep(); });
  all("button[data-all]").forEach((button) => button.addEventListener("click", () => {
    for (const box of boxes) {
      if (box.closest("label").hidden) continue; // the filter limits what the buttons change
      box.checked = ["show", data.groups[Number(box.value)]].includes(button.dataset.all);
    }
    draw();
  }));
  swatches();
  Tables.start();
  for (const query of ["(prefers-color-scheme: dark)", "print", "(max-width: 40rem)"]) {
    window.matchMedia(query).addEventListener("change", draw);
  }
  window.addEventListener("beforeprint", draw);
  if (data.live) {
    const reload = () => (document.querySelector(".tip:not([hidden])") ? setTimeout(reload, 1000) : location.reload());
    setTimeout(reload, 1000 * data.live.every);
  }
  draw();
})();
