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

  const drawn = [];
  const draw = async () => {
    for (const source of document.querySelectorAll("script[data-plot]")) {
      const plot = JSON.parse(source.textContent);
      for (const [path, colour] of Object.entries(colours())) {
        set(plot.layout, path, colour);
      }
      const place = document.getElementById(source.dataset.plot);
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
  draw();
})();
