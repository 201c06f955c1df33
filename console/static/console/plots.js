// Draws the plots of a page from the document in #series, and again whenever htmx has brought a newer one. Without scripts the drawings of the
// server stay. No markup is made from text here, and no style element: the Content-Security-Policy allows neither.
"use strict";

(() => {
  const HEIGHT = 210;
  const DASHES = [[], [6, 3], [2, 3], [10, 3, 2, 3], [1, 2], [12, 4]];
  const drawn = new Map(); // id -> { plot, lines }
  let markers = [];

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const pad = (number) => String(number).padStart(2, "0");

  function read() {
    const holder = document.getElementById("series");
    return holder ? JSON.parse(holder.dataset.series) : null;
  }

  function shown(value, unit) {
    if (value === null || value === undefined) return "–";
    if (unit === "share") return `${Math.round(value * 1000) / 10} %`;
    if (unit === "seconds") return value < 1 ? `${Number((value * 1000).toPrecision(3))} ms` : `${Number(value.toPrecision(3))} s`;
    return value.toLocaleString("en", { maximumSignificantDigits: 3 }); // toLocaleString alone ends after three decimals: ticks of 0.0005 were all "0"
  }

  // Values without a neighbour: no line leads to them, so they get a point however close the steps are.
  function lone(plot, place) {
    const all = plot.data[place];
    const is = (index) => all[index] !== null && all[index] !== undefined;
    return all.map((_value, index) => index).filter((index) => is(index) && !is(index - 1) && !is(index + 1));
  }

  function moment(seconds, step) {
    const at = new Date(seconds * 1000);
    const day = `${pad(at.getUTCMonth() + 1)}-${pad(at.getUTCDate())}`;
    const time = `${pad(at.getUTCHours())}:${pad(at.getUTCMinutes())}`;
    if (step >= 86400) return day;
    return time === "00:00" ? day : time;
  }

  // Changes as vertical lines with a small head, behind the data.
  function mark(plot) {
    const { ctx, bbox } = plot;
    ctx.save();
    ctx.strokeStyle = ctx.fillStyle = colour("--line-strong");
    ctx.setLineDash([3 * devicePixelRatio, 3 * devicePixelRatio]);
    ctx.lineWidth = devicePixelRatio;
    for (const one of markers) {
      const x = Math.round(plot.valToPos(one.at, "x", true));
      if (x < bbox.left || x > bbox.left + bbox.width) continue;
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
      ctx.beginPath();
      ctx.moveTo(x - 4 * devicePixelRatio, bbox.top);
      ctx.lineTo(x + 4 * devicePixelRatio, bbox.top);
      ctx.lineTo(x, bbox.top + 6 * devicePixelRatio);
      ctx.fill();
    }
    ctx.restore();
  }

  function axis(unit) {
    const common = { stroke: () => colour("--muted"), grid: { stroke: () => colour("--line"), width: 1 }, ticks: { show: false }, font: "12px system-ui" };
    // As wide as the widest of its words: of what finds no room the beginning would be cut off. After two rounds of layout it stays as it is.
    const size = (plot, words, place, cycle) => {
      const one = plot.axes[place];
      if (!words || cycle > 1) return one._size || 62;
      plot.ctx.font = one.font[0];
      return Math.max(62, one.gap + 4 + Math.ceil(Math.max(...words.map((word) => plot.ctx.measureText(word).width)) / devicePixelRatio));
    };
    return { ...common, size, values: (_plot, values) => values.map((value) => (value === null ? "" : shown(value, unit))) };
  }

  function options(one, width) {
    const series = [{ label: "Time", value: (_plot, at) => (at === null ? "–" : `${new Date(at * 1000).toISOString().slice(5, 16).replace("T", " ")} UTC`) }];
    one.lines.forEach((line, place) => {
      series.push({
        label: line.label, width: 2, dash: DASHES[place], stroke: () => colour(`--p${place + 1}`), points: { size: 5, filter: (plot, place, close) => (close ? null : lone(plot, place)) },
        value: (_plot, value) => shown(value, one.unit),
      });
    });
    for (const limit of one.limits) {
      series.push({ label: limit.label, width: 1.5, dash: [8, 4], stroke: () => colour("--bad"), points: { show: false }, value: (_plot, value) => shown(value, one.unit) });
    }
    return {
      width, height: HEIGHT, series,
      scales: { y: { range: (_plot, _low, high) => [0, one.unit === "share" ? 1 : (high || 1) * 1.08] } }, // nothing but zeros: up to one, as ticks that people know
      axes: [
        { ...axis("number"), size: 34, values: (_plot, values, _axis, _space, step) => values.map((value) => moment(value, step)) },
        axis(one.unit),
      ],
      tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC"),
      cursor: { sync: { key: "plots" }, drag: { x: false, y: false } },
      hooks: { drawClear: [mark] },
    };
  }

  function values(said, one) {
    return [said.x, ...one.lines.map((line) => line.values), ...one.limits.map((limit) => said.x.map(() => limit.value))];
  }

  function put(said, one) {
    const box = [...document.querySelectorAll("[data-plot]")].find((found) => found.dataset.plot === one.id);
    if (!box || !window.uPlot) return;
    const shape = JSON.stringify([one.lines.map((line) => line.label), one.limits]);
    const known = drawn.get(one.id);
    const empty = one.lines.every((line) => line.values.every((value) => value === null));
    if (known && known.box === box && known.shape === shape && !empty) {
      known.plot.setData(values(said, one));
      return;
    }
    if (known) {
      known.plot.destroy();
      drawn.delete(one.id);
    }
    if (empty) {
      const none = document.createElement("p");
      none.className = "muted";
      none.textContent = box.dataset.none;
      box.replaceChildren(none);
      return;
    }
    box.replaceChildren();
    const plot = new uPlot(options(one, Math.max(220, box.clientWidth - 36)), values(said, one), box);
    plot.root.querySelector("canvas").setAttribute("role", "img");
    plot.root.querySelector("canvas").setAttribute("aria-label", `${one.title}; the same figures are in the table below`);
    drawn.set(one.id, { plot, box, shape });
  }

  function draw() {
    const said = read();
    if (!said) return;
    markers = said.markers;
    for (const one of said.plots) put(said, one);
  }

  function fit() {
    for (const { plot, box } of drawn.values()) plot.setSize({ width: Math.max(220, box.clientWidth - 36), height: HEIGHT });
  }

  let waiting = 0;
  window.addEventListener("resize", () => {
    window.cancelAnimationFrame(waiting);
    waiting = window.requestAnimationFrame(fit);
  });
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    for (const { plot } of drawn.values()) plot.redraw(false, true);
  });
  document.addEventListener("htmx:afterSettle", (event) => {
    if (event.detail.target && event.detail.target.id === "live") draw();
    else if (document.getElementById("live") && event.target.id === "live") draw();
  });
  draw();
})();
