"use strict";
// Draws the report's figures from the data in the page, and again when something is switched.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const dashes = ["solid", "dash", "dot", "dashdot", "longdash"];
  const boxes = [...document.querySelectorAll("input[name=method]")];
  const state = { axis: "rounds", hidden: new Set(boxes.filter((box) => !box.checked).map((box) => Number(box.value))) };
  const config = {
    responsive: true, displaylogo: false, displayModeBar: "hover",
    modeBarButtons: [["toImage", "zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "resetScale2d"]],
  };

  const plain = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const tint = (i) => data.colours[i % data.colours.length];
  // A method that is there both as it is given and tuned has one colour, and a thinner line as it is given.
  const colour = (i) => tint(data.styles[i]);
  const dash = (i) => dashes[Math.floor(data.styles[i] / data.colours.length) % dashes.length];
  const width = (i) => (data.groups[i] === "given" && data.groups.includes("tuned") ? 1 : 2);
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const narrow = () => window.innerWidth < 640;
  const shown = (v) => Number(v.toPrecision(4)).toString();

  function layout(x, y) {
    const axis = (title) => ({
      title: { text: title, standoff: 8 }, automargin: true, gridcolor: css("--line"), zerolinecolor: css("--line"),
      linecolor: css("--faint"), rangemode: "normal",
    });
    return {
      font: { color: css("--ink"), family: "system-ui, sans-serif", size: narrow() ? 11 : 13 },
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", showlegend: false,
      margin: narrow() ? { l: 46, r: 8, t: 24, b: 42 } : { l: 60, r: 16, t: 28, b: 48 },
      hoverlabel: { bgcolor: css("--paper"), bordercolor: css("--faint"), font: { color: css("--ink") } },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: css("--faint"), activecolor: css("--ink") },
      hovermode: "closest", xaxis: axis(x), yaxis: axis(y),
    };
  }

  function metricFigure(metric) {
    const traces = [];
    metric.curves.forEach((c, i) => {
      if (c === null || c[state.axis] === null) return;
      const x = c[state.axis], visible = !state.hidden.has(i);
      if (c.low !== null) {
        traces.push({
          x: x.concat([...x].reverse()), y: c.high.concat([...c.low].reverse()), fill: "toself", type: "scatter",
          mode: "lines", line: { width: 0, color: colour(i) }, fillcolor: colour(i) + "2e", hoverinfo: "skip", visible,
          name: plain(data.methods[i]) + " (range)",
        });
      }
      traces.push({
        x, y: c.mean, type: "scatter", mode: x.length === 1 ? "markers" : "lines", visible, name: plain(data.methods[i]),
        line: { color: colour(i), width: width(i), dash: dash(i) }, marker: { color: colour(i) },
        text: c.mean.map((v, k) =>
          `<b>${plain(data.methods[i])}</b><br>round ${c.rounds[k]}, ${shown(c.megabytes[k])} MB` +
          (c.seconds === null ? "" : `, ${shown(c.seconds[k])} s`) + `<br>${plain(metric.title)} ${shown(v)}` +
          (c.low === null ? "" : ` (${shown(c.low[k])} to ${shown(c.high[k])}, ${c.seeds[k]} seeds)`)),
        hoverinfo: "text",
      });
    });
    const figure = layout(data.axes[state.axis], metric.title);
    if (metric.target !== null) {
      figure.shapes = [{ type: "line", xref: "paper", x0: 0, x1: 1, y0: metric.target, y1: metric.target,
        line: { color: css("--ink"), width: 1.5, dash: "dash" } }];
      figure.annotations = [{ xref: "paper", x: 0, xanchor: "left", y: metric.target, yanchor: "bottom", showarrow: false,
        text: `target ${shown(metric.target)}`, font: { color: css("--ink") } }];
    }
    return [traces, figure];
  }

  function splitFigure() {
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
    Object.assign(figure.xaxis, ticks(clients, narrow() ? 8 : 25), { range: [-0.7, clients.length - 0.3], zeroline: false });
    Object.assign(figure.yaxis, ticks(classes, 20), { range: [-0.7, classes.length - 0.3], zeroline: false });
    const most = Math.min(22, (narrow() ? 300 : 900) / clients.length, 300 / classes.length);
    return [[{ x, y, text, hoverinfo: "text", type: "scatter", mode: "markers",
      marker: { size, sizemode: "area", sizeref: (2 * largest) / (most * most), sizemin: 1, color: colours, line: { width: 0 } } }],
      figure];
  }

  function chosenFigure() {
    const traces = [];
    data.chosen.forEach((c, i) => {
      if (c === null) return;
      traces.push({ x: c.ranks, y: c.shares, type: "scatter", mode: "lines", visible: !state.hidden.has(i), hoverinfo: "text",
        name: plain(data.methods[i]), line: { color: colour(i), width: width(i), dash: dash(i), shape: "hvh" },
        text: c.shares.map((v, k) => `<b>${plain(data.methods[i])}</b><br>client of rank ${c.ranks[k]}: ${(100 * v).toFixed(1)} % of rounds`) });
    });
    const figure = layout("client, the most frequent first", "share of rounds");
    figure.yaxis.tickformat = ".0%";
    figure.yaxis.rangemode = "tozero";
    return [traces, figure];
  }

  function servedFigure() {
    const traces = [];
    data.served.forEach((s, i) => {
      if (s === null) return;
      traces.push({ x: s.shares, y: s.accuracies, type: "scatter", mode: "lines", visible: !state.hidden.has(i), hoverinfo: "text",
        name: plain(data.methods[i]), line: { color: colour(i), width: width(i), dash: dash(i) },
        text: s.accuracies.map((v, k) => `<b>${plain(data.methods[i])}</b><br>worst ${Math.round(100 * s.shares[k])} % of clients: up to ${shown(v)}`) });
    });
    const figure = layout("share of clients, the worst first", "accuracy on own data");
    figure.xaxis.tickformat = ".0%";
    return [traces, figure];
  }

  function draw() {
    const figures = data.metrics.map((metric) => [`plot-${metric.name}`, ...metricFigure(metric)]);
    if (data.split !== null) figures.push(["plot-split", ...splitFigure()]);
    if (data.served.some((s) => s !== null)) figures.push(["plot-served", ...servedFigure()]);
    figures.push(["plot-chosen", ...chosenFigure()]);
    return Promise.all(figures.map((figure) => Plotly.react(...figure, config))).then(() => {
      document.documentElement.dataset.drawn = performance.now().toFixed(0);
    });
  }

  document.querySelectorAll("input[name=axis]").forEach((input) => input.addEventListener("change", () => {
    state.axis = input.value;
    draw();
  }));
  document.querySelectorAll("input[name=method]").forEach((input) => input.addEventListener("change", () => {
    state.hidden[input.checked ? "delete" : "add"](Number(input.value));
    draw();
  }));
  document.querySelectorAll("button[data-all]").forEach((button) => button.addEventListener("click", () => {
    document.querySelectorAll("input[name=method]").forEach((input) => {
      input.checked = ["show", data.groups[Number(input.value)]].includes(button.dataset.all);
      state.hidden[input.checked ? "delete" : "add"](Number(input.value));
    });
    draw();
  }));
  document.querySelectorAll(".swatch").forEach((swatch, i) => {
    const line = swatch.querySelector("line");
    line.setAttribute("stroke", colour(i));
    line.setAttribute("stroke-width", 2 * width(i));
    line.setAttribute("stroke-dasharray", { solid: "", dash: "6 4", dot: "2 3", dashdot: "6 3 2 3", longdash: "10 4" }[dash(i)]);
  });
  for (const query of ["(prefers-color-scheme: dark)", "print", "(max-width: 40rem)"]) {
    window.matchMedia(query).addEventListener("change", draw);
  }
  window.addEventListener("beforeprint", draw);
  draw();
})();
