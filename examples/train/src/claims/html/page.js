"use strict";
(() => {
  const root = document.documentElement;
  const dark = matchMedia("(prefers-color-scheme: dark)");

  // What of a plot depends on the scheme.
  const colours = () => {
    const style = getComputedStyle(root);
    const value = (name) => style.getPropertyValue(name).trim();
    const axis = { gridcolor: value("--line"), linecolor: value("--line") };
    const changes = {
      "font.color": value("--text"),
      "hoverlabel.bgcolor": value("--page"),
      "hoverlabel.bordercolor": value("--line"),
      "hoverlabel.font.color": value("--text"),
    };
    for (const name of ["xaxis", "yaxis"]) {
      for (const [key, colour] of Object.entries(axis)) {
        changes[`${name}.${key}`] = colour;
      }
    }
    return changes;
  };

  // "a.b" of an object, made where it is missing.
  const set = (object, path, value) => {
    const keys = path.split(".");
    const last = keys.pop();
    keys.reduce((inner, key) => (inner[key] ??= {}), object)[last] = value;
  };

  // A plot's height: its area, its axis, and a legend of as many rows as its entries need there.
  const size = (place, data) => {
    const width = place.clientWidth - 75;
    let [rows, left] = [1, 0];
    for (const trace of data) {
      if (trace.showlegend === false || trace.type === "heatmap") continue;
      const entry = 48 + 6.2 * trace.name.length;
      if (left > 0 && left + entry > width) {
        rows += 1;
        left = 0;
      }
      left += entry;
    }
    const area = 270;
    return { height: area + 76 + 21 * rows, "legend.y": -66 / area };
  };

  const drawn = [];
  const draw = async () => {
    for (const source of document.querySelectorAll("script[data-plot]")) {
      const plot = JSON.parse(source.textContent);
      const place = document.getElementById(source.dataset.plot);
      for (const [path, value] of Object.entries({ ...colours(), ...size(place, plot.data) })) {
        set(plot.layout, path, value);
      }
      drawn.push(await Plotly.newPlot(place, plot.data, plot.layout, plot.config));
    }
    root.dataset.drawn = "all";
  };

  const recolour = () => {
    const changes = colours();
    for (const plot of drawn) {
      Plotly.relayout(plot, changes);
    }
  };

  document.getElementById("scheme").addEventListener("click", () => {
    const now = root.dataset.scheme ?? (dark.matches ? "dark" : "light");
    root.dataset.scheme = now === "dark" ? "light" : "dark";
    recolour();
  });
  dark.addEventListener("change", recolour);
  addEventListener("resize", () => {
    for (const plot of drawn) {
      Plotly.relayout(plot, size(plot, plot.data));
    }
  });
  draw();
})();
