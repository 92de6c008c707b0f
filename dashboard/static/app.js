// Times in the viewer's zone, plots, and polling while the page is visible.  No inline script, no eval.
"use strict";
(() => {
  const times = new Intl.DateTimeFormat(undefined, {
    year: "numeric", month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit",
  });

  const clock = new Intl.DateTimeFormat(undefined, {hour: "2-digit", minute: "2-digit"});

  function showTimes(root) {
    for (const element of root.querySelectorAll("time[datetime]:not([title])")) {
      const time = new Date(element.dateTime);
      if (!Number.isNaN(time.valueOf())) {
        element.title = element.dateTime;
        element.textContent = times.format(time);
      }
    }
  }

  function color(name) {
    return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  }

  const plots = new Map();

  function short(value) {
    if (value === null || value === undefined) return "–";
    return value >= 10 || value === 0 ? Math.round(value).toLocaleString() : value.toFixed(1);
  }

  function drawPlot(element) {
    const labels = JSON.parse(element.dataset.labels);
    const unit = element.dataset.unit;
    const strokes = [color("--in"), color("--out"), color("--good"), color("--bad")];
    const span = Number(element.dataset.span);
    const data = JSON.parse(element.dataset.plot);
    const [first, last] = data[0].length ? [data[0][0], data[0].at(-1)] : [Infinity, Date.now() / 1000];
    const axis = {stroke: color("--quiet"), grid: {stroke: color("--line"), width: 1}, ticks: {stroke: color("--line")}};
    const legend = 40;
    const plot = new uPlot({
      width: element.clientWidth,
      height: element.clientHeight - legend,
      padding: [null, 36, null, null], // of the last label of the axis
      scales: {
        x: {range: () => [Math.min(first, last - span), last]}, // uPlot itself takes one point for the start of a day
        y: {range: (_plot, _low, high) => [0, Math.max(2, (high || 0) * 1.1)]},
      },
      axes: [{...axis, space: 80, values: (_plot, ticks) => ticks.map((tick) => clock.format(tick * 1000))}, {...axis, size: 70, values: (_plot, ticks) => ticks.map((tick) => short(tick) + unit)}],
      series: [
        {label: "Time", value: (_plot, value) => (value === null ? "–" : times.format(value * 1000))},
        ...labels.map((label, index) => ({
          label, stroke: strokes[index % strokes.length], width: 2, dash: index % 2 ? [6, 3] : undefined,
          value: (_plot, value) => (value === null ? "–" : short(value) + unit),
        })),
      ],
    }, data, element);
    plots.set(element, plot);
  }

  function drawPlots() {
    for (const [element, plot] of plots) {
      if (!element.isConnected) {
        plot.destroy();
        plots.delete(element);
      }
    }
    for (const element of document.querySelectorAll("[data-plot]")) {
      if (!plots.has(element)) drawPlot(element);
    }
  }

  function redraw() {
    for (const [element, plot] of plots) {
      plot.destroy();
      element.replaceChildren();
    }
    plots.clear();
    drawPlots();
  }

  // Without this script the times of forms are UTC, as their labels say.
  function sendTimesInUtc() {
    const zone = new Intl.DateTimeFormat().resolvedOptions().timeZone;
    for (const label of document.querySelectorAll("[data-zone]")) label.textContent = zone;
    document.addEventListener("formdata", ({target, formData}) => {
      for (const {name, value} of target.querySelectorAll("[data-local]")) {
        const time = /^[\d-]+T[\d:.]+$/.test(value) ? new Date(value) : NaN; // not -10m, nor a time with its zone
        if (!Number.isNaN(Number(time))) formData.set(name, time.toISOString());
      }
    });
  }

  function refresh() {
    showTimes(document);
    drawPlots();
  }

  // A fragment asks again every data-poll seconds, while somebody sees it and does nothing in it.
  function poll(element) {
    const isBusy = element.contains(document.activeElement) && document.activeElement.matches("input, select, textarea");
    const selection = document.getSelection();
    const isSelected = selection && !selection.isCollapsed && element.contains(selection.anchorNode);
    if (document.visibilityState === "visible" && !isBusy && !isSelected) htmx.trigger(element, "poll");
  }

  function stale(is) {
    const note = document.getElementById("stale");
    if (note) note.hidden = !is;
  }

  document.addEventListener("DOMContentLoaded", () => {
    refresh();
    sendTimesInUtc();
    for (const link of document.querySelectorAll("nav [aria-current]")) link.scrollIntoView({block: "nearest", inline: "nearest"});
    for (const element of document.querySelectorAll("[data-poll]")) {
      setInterval(poll, Number(element.dataset.poll) * 1000, element);
      setTimeout(poll, 1500, element); // the first rates need two looks
    }
    document.addEventListener("visibilitychange", () => {
      for (const element of document.querySelectorAll("[data-poll]")) poll(element);
    });
  });
  document.addEventListener("htmx:afterSwap", refresh); // before the browser paints it
  document.addEventListener("htmx:afterRequest", (event) => stale(!event.detail.successful));
  window.addEventListener("resize", redraw);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
})();
