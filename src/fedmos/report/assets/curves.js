"use strict";
// Curves of a metric: one chart of all methods, or one small panel for each.
const Curves = (() => {
  const { data, css, narrow, plain, short, shown, inked, colour, dash, width, axis, layout, textWidth } = Theme;
  const LABEL = 15, PERIOD = 24;
  const COINCIDE = { most: 0.02, mean: 0.005 }; // distances of curves that coincide, as shares of the vertical axis

  const visible = (metric, state) => state.order.filter((i) => {
    const c = metric.curves[i];
    return c !== null && c[state.axis] !== null && !state.hidden.has(i);
  });

  // The mean, or its average over neighbouring rounds with weights that fall with their distance.
  function smooth(c, percent) {
    if (!percent || c.mean.length < 3) return c.mean;
    const sigma = (percent / 100) * (c.rounds[c.rounds.length - 1] - c.rounds[0]) || 1;
    return c.rounds.map((t) => {
      let sum = 0, weight = 0;
      c.rounds.forEach((u, k) => {
        const w = Math.exp(-(((t - u) / sigma) ** 2) / 2);
        sum += w * c.mean[k];
        weight += w;
      });
      return sum / weight;
    });
  }

  // The value of a curve at x, on the straight line between its neighbours; null outside the curve.
  function valueAt(xs, ys, x) {
    const last = xs.length - 1;
    if (x < xs[0] || x > xs[last]) return null;
    let low = 0, high = last;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (xs[middle] <= x) low = middle; else high = middle;
    }
    if (high === low || xs[high] === xs[low]) return ys[low];
    return ys[low] + ((ys[high] - ys[low]) * (x - xs[low])) / (xs[high] - xs[low]);
  }

  function limits(metric, state, shownMethods) {
    const values = [], along = [];
    for (const i of shownMethods) {
      const c = metric.curves[i];
      along.push(c[state.axis][0], c[state.axis][c.mean.length - 1]);
      values.push(...c.mean, ...(c.low ?? []), ...(c.high ?? []));
    }
    if (metric.target !== null) values.push(metric.target);
    const range = (all, log, pad) => {
      const usable = log ? all.filter((v) => v > 0).map(Math.log10) : all;
      if (!usable.length) return undefined;
      const low = usable.reduce((a, b) => Math.min(a, b)), high = usable.reduce((a, b) => Math.max(a, b));
      const more = (high - low || Math.abs(high) || 1) * pad;
      return [low - more, high + more];
    };
    return { x: range(along, state.logX, 0.015), y: range(values, state.logY, 0.04) };
  }

  // Groups of methods whose curves cannot be told apart in the chart.
  function coinciding(metric, state, shownMethods) {
    const { y } = limits(metric, state, shownMethods);
    if (!y) return [];
    const scale = (v) => (state.logY ? Math.log10(Math.max(v, 1e-300)) : v);
    const close = (i, j) => {
      const a = metric.curves[i], b = metric.curves[j];
      const xs = a[state.axis], other = b[state.axis];
      if (Math.abs(xs[xs.length - 1] - other[other.length - 1]) > 0.01 * xs[xs.length - 1]) return null;
      let most = 0, sum = 0;
      for (let k = 0; k < xs.length; k += 1) {
        const v = valueAt(other, b.mean, xs[k]);
        if (v === null) continue;
        const distance = Math.abs(scale(v) - scale(a.mean[k])) / (y[1] - y[0]);
        if (distance > COINCIDE.most) return null;
        sum += distance;
        most = Math.max(most, Math.abs(v - a.mean[k]));
      }
      return sum / xs.length > COINCIDE.mean ? null : most;
    };
    const groups = [];
    for (const i of shownMethods) {
      const group = groups.find((g) => close(g.methods[0], i) !== null);
      if (group) { group.most = Math.max(group.most, close(group.methods[0], i)); group.methods.push(i); }
      else groups.push({ methods: [i], most: 0 });
    }
    return groups.filter((g) => g.methods.length > 1);
  }

  // Members of a group alternate along the line: each later one covers a shorter part of every period.
  function interleaved(groups) {
    const patterns = new Map();
    for (const { methods } of groups) {
      methods.forEach((i, k) => {
        const on = Math.round((PERIOD * (methods.length - k)) / methods.length);
        patterns.set(i, k === 0 ? "solid" : `${on}px,${PERIOD - on}px`);
      });
    }
    return patterns;
  }

  function note(metric, state) {
    const groups = coinciding(metric, state, visible(metric, state));
    const lines = groups.map(({ methods, most }) => {
      const names = methods.map((i) => data.methods[i]);
      const listed = `${names.slice(0, -1).join(", ")} and ${names[names.length - 1]}`;
      return most === 0 ? `${listed} coincide exactly.` : `${listed} coincide: they differ by at most ${Number(most.toPrecision(2))}.`;
    });
    if (state.smoothing) lines.push("Lines are smoothed; pale lines are as measured.");
    return lines.join(" ");
  }

  function band(c, x, i, more) {
    return {
      x: x.concat([...x].reverse()), y: c.high.concat([...c.low].reverse()), fill: "toself", type: "scatter",
      mode: "lines", line: { width: 0, color: colour(i) }, fillcolor: colour(i) + "24", hoverinfo: "skip", ...more,
    };
  }

  function line(c, x, y, i, look) {
    const { more = {}, ...own } = look;
    return {
      x, y, type: "scatter", mode: x.length === 1 ? "markers" : "lines", name: plain(data.methods[i]),
      hoverinfo: "skip", line: { color: colour(i), width: width(i), dash: dash(i), ...own }, marker: { color: colour(i) }, ...more,
    };
  }

  function target(metric, refs = {}) {
    return { type: "line", xref: refs.xref ?? "paper", x0: 0, x1: 1, yref: refs.yref ?? "y", y0: metric.target, y1: metric.target,
      line: { color: css("--ink"), width: 1.2, dash: "dash" } };
  }

  function scales(figure, state, range) {
    Object.assign(figure.xaxis, { type: state.logX ? "log" : "linear", range: range.x });
    Object.assign(figure.yaxis, { type: state.logY ? "log" : "linear", range: range.y });
  }

  function overlay(metric, state) {
    const methods = visible(metric, state), traces = [];
    const patterns = interleaved(coinciding(metric, state, methods));
    for (const i of methods) {
      const c = metric.curves[i];
      if (c.low !== null) traces.push(band(c, c[state.axis], i, { name: plain(data.methods[i]) + " (range)" }));
    }
    for (const i of methods) {
      const c = metric.curves[i], x = c[state.axis];
      if (state.smoothing) traces.push(line(c, x, c.mean, i, { width: 1, more: { opacity: 0.3 } }));
      traces.push(line(c, x, smooth(c, state.smoothing), i, patterns.has(i) ? { dash: patterns.get(i), width: 2.5 } : {}));
    }
    const figure = layout(data.axes[state.axis], metric.title, { hovermode: false });
    scales(figure, state, limits(metric, state, methods));
    const most = narrow() ? 13 : 26, size = narrow() ? 10 : 12;
    const widest = Math.max(0, ...methods.map((i) => textWidth(short(data.methods[i], most), size)));
    figure.margin.r = Math.ceil(widest) + 14;
    if (metric.target !== null) figure.shapes = [target(metric)];
    return [traces, figure];
  }

  // Names at the ends of the lines, moved apart where they would overlap.
  function endLabels(gd, metric, state) {
    const { xaxis, yaxis, _size } = gd._fullLayout;
    const px = (a, v) => a.d2p(v), most = narrow() ? 13 : 26, size = narrow() ? 10 : 12;
    const ends = [];
    for (const i of visible(metric, state)) {
      const c = metric.curves[i], y = smooth(c, state.smoothing), x = c[state.axis];
      let k = x.length - 1;
      while (k > 0 && px(xaxis, x[k]) > _size.w + 1) k -= 1;
      const at = { i, x: px(xaxis, x[k]), y: px(yaxis, y[k]) };
      if (Number.isFinite(at.y) && at.y >= -1 && at.y <= _size.h + 1 && at.x >= 0) ends.push(at);
    }
    const room = Math.floor(_size.h / LABEL);
    ends.sort((a, b) => a.y - b.y);
    const kept = ends.length <= room ? ends : ends.filter((_, k) => Math.floor((k * room) / ends.length) !== Math.floor(((k - 1) * room) / ends.length));
    let before = -LABEL;
    for (const end of kept) before = end.at = Math.max(end.y, before + LABEL);
    let after = _size.h + LABEL / 2;
    for (const end of [...kept].reverse()) after = end.at = Math.min(end.at, after - LABEL);
    const names = kept.map((end) => ({
      xref: "paper", yref: "paper", x: end.x / _size.w, y: 1 - end.at / _size.h, xanchor: "left", yanchor: "middle", xshift: 5,
      showarrow: false, text: plain(short(data.methods[end.i], most)), font: { color: inked(colour(end.i)), size }, name: "end",
      bgcolor: end.x < 0.97 * _size.w ? css("--veil") : "rgba(0,0,0,0)", borderpad: 1,
    }));
    const goal = metric.target === null ? [] : [{ xref: "paper", x: 0, xanchor: "left", yref: "y", y: state.logY ? Math.log10(metric.target) : metric.target,
      yanchor: "bottom", showarrow: false, text: `target ${shown(metric.target)}`, font: { color: css("--ink"), size }, bgcolor: css("--veil") }];
    return Plotly.relayout(gd, { annotations: [...goal, ...names] });
  }

  // One panel per method, the others in grey behind it.
  function multiples(metric, state) {
    const methods = visible(metric, state), traces = [], range = limits(metric, state, methods);
    const columns = Math.min(methods.length, narrow() ? 2 : 4) || 1, rows = Math.ceil(methods.length / columns) || 1;
    const height = rows * (narrow() ? 130 : 150) + 90;
    const figure = layout("", "", { height, annotations: [], shapes: [], hovermode: "closest" });
    figure.margin = { l: narrow() ? 34 : 44, r: 8, t: narrow() ? 22 : 50, b: 40 };
    const grey = others(metric, state, methods), gap = { x: 0.02, y: Math.min(0.24 / rows, 0.1) };
    methods.forEach((i, k) => {
      const c = metric.curves[i], n = k === 0 ? "" : k + 1, row = Math.floor(k / columns), column = k % columns;
      const x0 = column / columns + (column ? gap.x / 2 : 0), x1 = (column + 1) / columns - gap.x / 2;
      const y1 = 1 - row / rows, y0 = 1 - (row + 1) / rows + gap.y, last = k + columns >= methods.length;
      const own = { matches: k === 0 ? undefined : "x", nticks: 4, showticklabels: last, automargin: false };
      figure[`xaxis${n}`] = axis("", { ...own, domain: [x0, x1], anchor: `y${n}`, range: range.x, type: state.logX ? "log" : "linear" });
      figure[`yaxis${n}`] = axis("", { domain: [y0, y1], anchor: `x${n}`, range: range.y, type: state.logY ? "log" : "linear",
        matches: k === 0 ? undefined : "y", nticks: 4, showticklabels: column === 0, automargin: false });
      const refs = { xaxis: `x${n}`, yaxis: `y${n}` };
      traces.push({ ...grey, ...refs });
      if (c.low !== null) traces.push(band(c, c[state.axis], i, refs));
      const name = plain(short(data.methods[i], narrow() ? 22 : 30)), y = smooth(c, state.smoothing);
      traces.push(line(c, c[state.axis], y, i, { width: 2, dash: "solid", more: { ...refs, hoverinfo: undefined,
        hovertemplate: `${name}<br>${data.axes[state.axis]} %{x:.4~g}: %{y:.4~g}<extra></extra>` } }));
      figure.annotations.push({ xref: `x${n} domain`, yref: `y${n} domain`, x: 0, y: 1, xanchor: "left", yanchor: "bottom",
        showarrow: false, text: `<b>${name}</b>  ${shown(c.mean[c.mean.length - 1])}`, font: { size: narrow() ? 10 : 12, color: css("--ink") } });
      if (metric.target !== null) figure.shapes.push(target(metric, { xref: `x${n} domain`, yref: `y${n}` }));
    });
    figure.annotations.push({ xref: "paper", yref: "paper", x: 0.5, y: 0, yshift: -38, yanchor: "bottom", showarrow: false, text: data.axes[state.axis] });
    return [traces, figure];
  }

  // All curves as one grey trace of few points.
  function others(metric, state, methods) {
    const x = [], y = [];
    for (const i of methods) {
      const c = metric.curves[i], step = Math.max(1, Math.ceil(c.mean.length / 40));
      c.mean.forEach((v, k) => {
        if (k % step === 0 || k === c.mean.length - 1) { x.push(c[state.axis][k]); y.push(v); }
      });
      x.push(null); y.push(null);
    }
    return { x, y, type: "scatter", mode: "lines", hoverinfo: "skip", line: { color: css("--line"), width: 1 } };
  }

  return { visible, smooth, valueAt, coinciding, note, overlay, endLabels, multiples };
})();
