"use strict";
// The figures that are not curves over rounds: the split, participation, accuracy across clients, megabytes.
const Figures = (() => {
  const { data, css, narrow, plain, shown, tint, colour, dash, width, layout } = Theme;

  function split() {
    const { clients, classes, points, largest } = data.split;
    const x = [], y = [], size = [], text = [], colours = [];
    points.forEach(([i, c, n]) => {
      x.push(i); y.push(c); size.push(n); colours.push(tint(c));
      text.push(`client ${clients[i]}, class ${plain(classes[c])}: ${n}`);
    });
    const figure = layout("client", "class");
    const every = (n, most) => Math.max(1, Math.ceil(n / most));
    const ticks = (names, most) => {
      const at = names.map((_, i) => i).filter((i) => i % every(names.length, most) === 0);
      return { tickvals: at, ticktext: at.map((i) => plain(names[i])) };
    };
    Object.assign(figure.xaxis, ticks(clients, narrow() ? 8 : 25), { range: [-0.7, clients.length - 0.3] });
    Object.assign(figure.yaxis, ticks(classes, 20), { range: [-0.7, classes.length - 0.3] });
    const most = Math.min(22, (narrow() ? 300 : 900) / clients.length, 300 / classes.length);
    return [[{ x, y, text, hoverinfo: "text", type: "scatter", mode: "markers",
      marker: { size, sizemode: "area", sizeref: (2 * largest) / (most * most), sizemin: 1, color: colours, line: { width: 0 } } }],
      figure];
  }

  function lines(curves, state, x, y, words, more = {}) {
    const traces = [];
    for (const i of state.order) {
      const c = curves[i];
      if (c === null || state.hidden.has(i)) continue;
      traces.push({ x: x(c), y: y(c), type: "scatter", mode: "lines", name: plain(data.methods[i]), hoverinfo: "text",
        line: { color: colour(i), width: width(i), dash: dash(i), ...more },
        text: y(c).map((v, k) => `<b>${plain(data.methods[i])}</b><br>${words(x(c)[k], v)}`) });
    }
    return traces;
  }

  function chosen(state) {
    const words = (rank, v) => `client of rank ${rank}: ${(100 * v).toFixed(1)} % of rounds`;
    const traces = lines(data.chosen, state, (c) => c.ranks, (c) => c.shares, words, { shape: "hvh" });
    const figure = layout("client, the most frequent first", "share of rounds");
    Object.assign(figure.yaxis, { tickformat: ".0%", rangemode: "tozero" });
    return [traces, figure];
  }

  function served(state) {
    const words = (share, v) => `worst ${Math.round(100 * share)} % of clients: up to ${shown(v)}`;
    const traces = lines(data.served, state, (c) => c.shares, (c) => c.accuracies, words);
    const figure = layout("share of clients, the worst first", "accuracy on own data");
    figure.xaxis.tickformat = ".0%";
    return [traces, figure];
  }

  function spread(state) {
    const edges = (c) => [...c.histogram, 0].map((_, k) => k / c.histogram.length);
    const shares = (c) => [...c.histogram, c.histogram.at(-1)];
    const words = (v, share) => `accuracy from ${shown(v)}: ${(100 * share).toFixed(1)} % of clients`;
    const traces = lines(data.served, state, edges, shares, words, { shape: "hv" });
    const figure = layout("accuracy on own data", "share of clients");
    Object.assign(figure.yaxis, { tickformat: ".0%", rangemode: "tozero" });
    Object.assign(figure.xaxis, { range: [0, 1] });
    return [traces, figure];
  }

  function gains(state) {
    const { reference, methods } = data.gains;
    const traces = [{ x: [0, 1], y: [0, 1], type: "scatter", mode: "lines", hoverinfo: "skip",
      line: { color: css("--faint"), width: 1, dash: "dash" } }];
    for (const i of state.order) {
      const c = methods[i];
      if (c === null || state.hidden.has(i)) continue;
      traces.push({ x: c.reference, y: c.own, type: "scatter", mode: "markers", name: plain(data.methods[i]), hoverinfo: "text",
        marker: { color: colour(i), size: 5, opacity: 0.6 },
        text: c.own.map((v, k) => `<b>${plain(data.methods[i])}</b><br>${shown(v)}, with ${plain(reference)} ${shown(c.reference[k])}`) });
    }
    const figure = layout(`accuracy of the client with ${plain(reference)}`, "accuracy of the client");
    Object.assign(figure.xaxis, { range: [-0.02, 1.02] });
    Object.assign(figure.yaxis, { range: [-0.02, 1.02] });
    return [traces, figure];
  }

  function traded(state) {
    const { title, target, methods, front } = data.traded;
    const words = (megabytes, v) => `${shown(megabytes)} MB: ${title} ${shown(v)}`;
    const traces = lines(methods, state, (c) => c.megabytes, (c) => c.values, words, { shape: "hv" });
    const best = { x: front.megabytes, y: front.values, type: "scatter", mode: "lines", name: "Pareto front", hoverinfo: "text",
      line: { color: css("--faint"), width: 7, shape: "hv" }, opacity: 0.35,
      text: front.methods.map((i, k) => `<b>Pareto front: ${plain(data.methods[i])}</b><br>${words(front.megabytes[k], front.values[k])}`) };
    const figure = layout("megabytes sent, both ways", title);
    figure.xaxis.type = "log";
    if (target !== null) {
      figure.shapes = [{ type: "line", xref: "paper", x0: 0, x1: 1, y0: target, y1: target, line: { color: css("--faint"), width: 1, dash: "dash" } }];
    }
    return [[best, ...traces], figure];
  }

  return { split, chosen, served, spread, gains, traded };
})();
