"use strict";
// One tooltip that compares all methods at the pointer's x.
const Hover = (() => {
  const { data, plain, shown, colour } = Theme;

  function nearest(metric, state, x) {
    let best = null;
    for (const i of Curves.visible(metric, state)) {
      for (const v of metric.curves[i][state.axis]) {
        if (best === null || Math.abs(v - x) < Math.abs(best - x)) best = v;
      }
    }
    return best;
  }

  function rows(metric, state, x) {
    const found = [];
    for (const i of Curves.visible(metric, state)) {
      const c = metric.curves[i], xs = c[state.axis], at = (ys) => Curves.valueAt(xs, ys, x);
      const value = at(c.mean);
      if (value === null) continue;
      found.push({ i, value, low: c.low && at(c.low), high: c.high && at(c.high), round: at(c.rounds) });
    }
    return found.sort((a, b) => (metric.lower ? a.value - b.value : b.value - a.value));
  }

  function html(metric, state, x) {
    const unit = { rounds: (v) => `Round ${shown(v)}`, megabytes: (v) => `${shown(v)} MB`, seconds: (v) => `${shown(v)} s` }[state.axis];
    const found = rows(metric, state, x), ranges = found.some((r) => r.low !== null && r.low !== undefined);
    const lines = found.map((r) =>
      `<tr><td><i style="background:${colour(r.i)}"></i></td><th>${plain(data.methods[r.i])}</th><td>${r.value.toPrecision(4)}</td>` +
      (ranges ? `<td class="range">${r.low === null ? "" : `${r.low.toPrecision(3)}–${r.high.toPrecision(3)}`}</td>` : "") +
      (state.axis === "rounds" ? "" : `<td class="range">round ${Math.round(r.round)}</td>`) + "</tr>");
    return `<b>${unit(x)}</b> · ${plain(metric.title)}<table>${lines.join("")}</table>`;
  }

  function attach(gd, metric, state) {
    const tip = document.createElement("div"), rule = document.createElement("div");
    tip.className = "tip"; rule.className = "rule"; tip.hidden = rule.hidden = true;
    tip.setAttribute("role", "status");
    gd.parentElement.append(rule, tip);
    let current = null;

    function hide() { tip.hidden = rule.hidden = true; current = null; }

    function show(x) {
      const { xaxis, _size } = gd._fullLayout;
      const at = nearest(metric, state, x);
      if (at === null) return hide();
      current = at;
      const left = _size.l + xaxis.d2p(at);
      if (left < _size.l - 1 || left > _size.l + _size.w + 1) return hide();
      tip.innerHTML = html(metric, state, at);
      tip.hidden = rule.hidden = false;
      Object.assign(rule.style, { left: `${left}px`, top: `${gd.offsetTop + _size.t}px`, height: `${_size.h}px` });
      const room = gd.offsetWidth - tip.offsetWidth - 4;
      const beside = left + 14 <= room ? left + 14 : left - tip.offsetWidth - 14;
      const below = Math.max(4, metric.lower ? 4 : _size.h - tip.offsetHeight - 6); // where curves do not end
      Object.assign(tip.style, { left: `${Math.max(0, Math.min(beside, room))}px`, top: `${gd.offsetTop + _size.t + below}px` });
    }

    gd.addEventListener("pointermove", (event) => {
      if (state.view !== "overlay" || event.buttons || !gd._fullLayout) return hide();
      const { xaxis, _size } = gd._fullLayout, box = gd.getBoundingClientRect();
      const x = event.clientX - box.left - _size.l, y = event.clientY - box.top - _size.t;
      if (x < 0 || y < 0 || x > _size.w || y > _size.h) return hide();
      show(xaxis.p2d(x));
    });
    gd.addEventListener("pointerleave", hide);
    gd.addEventListener("blur", hide);
    gd.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (event.key === "Escape") hide();
      if (!step || state.view !== "overlay") return;
      event.preventDefault();
      const all = new Set(Curves.visible(metric, state).flatMap((i) => metric.curves[i][state.axis]));
      const xs = [...all].sort((a, b) => a - b);
      const k = current === null ? (step > 0 ? -1 : xs.length) : xs.indexOf(current);
      show(xs[Math.max(0, Math.min(xs.length - 1, k + step))]);
    });
  }

  return { attach };
})();
