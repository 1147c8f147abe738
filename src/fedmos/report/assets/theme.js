"use strict";
// Colours, dashes and the layout that all figures share.
const Theme = (() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const dashes = ["solid", "8px,4px", "2px,3px", "8px,3px,2px,3px", "14px,4px"];
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const narrow = () => window.innerWidth < 640;
  const plain = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const short = (text, most) => (text.length <= most ? text : `${text.slice(0, most - 1).trimEnd()}…`);
  const shown = (v) => Number(v.toPrecision(4)).toString();
  const tint = (i) => data.colours[i % data.colours.length];
  // A method that is there both as it is given and tuned has one colour, and a thinner line as it is given.
  const colour = (i) => tint(data.styles[i]);
  const dash = (i) => dashes[Math.floor(data.styles[i] / data.colours.length) % dashes.length];
  const width = (i) => (data.groups[i] === "given" && data.groups.includes("tuned") ? 1 : 2);

  // A colour for letters, which need more contrast than lines: a third of it is the colour of text.
  function inked(hex) {
    const parts = (c) => [1, 3, 5].map((k) => parseInt(c.slice(k, k + 2), 16));
    const ink = parts(css("--ink"));
    return `rgb(${parts(hex).map((v, k) => Math.round(0.65 * v + 0.35 * ink[k])).join(",")})`;
  }

  const config = {
    responsive: true, displaylogo: false, displayModeBar: narrow() ? false : "hover",
    modeBarButtons: [["toImage", "zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "resetScale2d"]],
  };

  function axis(title, more) {
    return {
      title: { text: title, standoff: 8 }, automargin: true, gridcolor: css("--grid"), zeroline: false,
      linecolor: css("--line"), tickcolor: css("--line"), showline: true, ticks: "outside", ticklen: 4, ...more,
    };
  }

  function layout(x, y, more) {
    return {
      font: { color: css("--ink"), family: "system-ui, -apple-system, 'Segoe UI', sans-serif", size: narrow() ? 11 : 13 },
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", showlegend: false,
      margin: narrow() ? { l: 40, r: 8, t: 8, b: 38 } : { l: 56, r: 16, t: 28, b: 44 },
      hoverlabel: { bgcolor: css("--raised"), bordercolor: css("--line"), font: { color: css("--ink") } },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: css("--faint"), activecolor: css("--ink") },
      hovermode: "closest", xaxis: axis(x), yaxis: axis(narrow() ? "" : broken(y)), ...more,
    };
  }

  // A long title of an axis in two lines, because the figure is not high.
  function broken(title) {
    const words = title.split(" "), half = title.length / 2;
    if (title.length <= 32) return title;
    let first = words.shift();
    while (words.length > 1 && first.length + words[0].length / 2 < half) first += " " + words.shift();
    return first + "<br>" + words.join(" ");
  }

  const canvas = document.createElement("canvas").getContext("2d");
  function textWidth(text, size) {
    canvas.font = `${size}px system-ui, sans-serif`;
    return canvas.measureText(text).width;
  }

  return { data, css, narrow, plain, short, shown, tint, inked, colour, dash, width, config, axis, layout, textWidth };
})();
