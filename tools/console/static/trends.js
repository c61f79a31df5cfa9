// The charts of the last hour: uPlot, drawn in the colours of the page, fetched again every ten seconds.
"use strict";
(() => {
  const area = document.querySelector("[data-trends]");
  if (!area || typeof uPlot === "undefined") return;
  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const short = (value) => value == null ? "–" : new Intl.NumberFormat(document.documentElement.lang, { notation: "compact", maximumFractionDigits: 1 }).format(value);

  const clock = new Intl.DateTimeFormat(document.documentElement.lang, { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
  const time = (seconds) => seconds == null ? "–" : clock.format(seconds * 1000);
  const timeShort = (seconds) => time(seconds).replace(/:00$/, "");

  // Before the second sample there is no time that passed: the last two minutes are shown, empty.
  function span(low, high) {
    const end = high ?? Date.now() / 1000;
    return [Math.min(low ?? end, end - 120), end];
  }

  function options(place, width) {
    const strokes = [color("--accent"), color("--ok")];
    const axis = { stroke: color("--muted"), grid: { stroke: color("--line"), width: 1 }, ticks: { stroke: color("--line"), width: 1 }, font: "12px system-ui" };
    const labels = place.dataset.labels.split("|");
    return {
      width, height: 180, cursor: { drag: { x: true, y: false } },
      scales: { x: { range: (_, low, high) => span(low, high) }, y: { range: (_, low, high) => [0, Math.max(1, (high || 0) * 1.1)] } },
      axes: [{ ...axis, space: 70, values: (_, marks) => marks.map(timeShort) }, { ...axis, size: 52, values: (_, marks) => marks.map(short) }],
      series: [{ label: area.dataset.time, value: (_, value) => time(value) }, ...labels.map((label, at) => ({ label, stroke: strokes[at], width: 2, fill: at ? undefined : strokes[at] + "1c", points: { show: false }, value: (_, value) => short(value) }))],
    };
  }

  const charts = [...area.querySelectorAll(".chart")].map((place) => ({ place, names: place.dataset.series.split(" "), plot: null }));
  async function draw(again) {
    const answer = await fetch(area.dataset.trends).catch(() => null);
    if (!answer || !answer.ok) return;
    const columns = await answer.json();
    for (const chart of charts) {
      const data = [columns.at, ...chart.names.map((name) => columns[name])];
      if (again || !chart.plot) {
        chart.plot?.destroy();
        chart.plot = new uPlot(options(chart.place, Math.max(200, chart.place.clientWidth)), data, chart.place);
      } else chart.plot.setData(data);
    }
    area.dataset.drawn = columns.at.length;
  }
  draw(true);
  setInterval(() => { if (document.visibilityState === "visible") draw(false); }, 10000);
  let waiting;
  addEventListener("resize", () => { clearTimeout(waiting); waiting = setTimeout(() => draw(true), 200); });
})();
