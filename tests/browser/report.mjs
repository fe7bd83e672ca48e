// Opens a report in headless Chromium as a reader would, from its file, and checks that it works.
//
//   node report.mjs REPORT.html [FOLDER FOR SCREENSHOTS]
import assert from "node:assert/strict";
import { mkdirSync } from "node:fs";
import { join, resolve } from "node:path";
import { pathToFileURL } from "node:url";
import { chromium } from "playwright-core";

const [report, shots = "screenshots"] = process.argv.slice(2);
if (!report) {
  console.error("usage: node report.mjs REPORT.html [FOLDER FOR SCREENSHOTS]");
  process.exit(2);
}
mkdirSync(shots, { recursive: true });
const address = pathToFileURL(resolve(report)).href;

const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  headless: true,
  args: [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
  ],
});

/** A page with the report drawn; whatever the console says or the page asks for is a failure. */
async function open(options) {
  const context = await browser.newContext({ offline: true, ...options });
  const page = await context.newPage();
  const complaints = [];
  page.on("console", (message) => {
    if (["error", "warning", "assert"].includes(message.type())) {
      complaints.push(`${message.type()}: ${message.text()}`);
    }
  });
  page.on("pageerror", (error) => complaints.push(`exception: ${error.message}`));
  page.on("request", (request) => {
    const url = request.url();
    if (url !== address && !url.startsWith("data:") && !url.startsWith("blob:")) {
      complaints.push(`request: ${url}`);
    }
  });
  await page.goto(address);
  await page.waitForSelector("html[data-drawn=all]", { timeout: 60_000 });
  return { page, close: async () => {
    assert.deepEqual(complaints, []);
    await context.close();
  } };
}

const background = (page) =>
  page.evaluate(() => getComputedStyle(document.body).backgroundColor);

const tests = {
  async "each of the eleven claims has a verdict and figures"({ page }) {
    const rows = page.locator("table.claims tbody tr");
    assert.equal(await rows.count(), 11);
    const verdicts = ["holds", "holds under a condition", "does not hold"];
    for (let row = 0; row < 11; row += 1) {
      const verdict = await rows.nth(row).locator(".verdict").innerText();
      assert.ok(verdicts.includes(verdict), `claim ${row + 1}: ${verdict}`);
      const figures = rows.nth(row).locator("dd");
      assert.ok((await figures.count()) > 0, `claim ${row + 1} has no figure`);
      assert.match(await figures.first().innerText(), /\d|-/);
    }
  },

  async "every plot is drawn"({ page }) {
    const plots = page.locator(".plot");
    const count = await plots.count();
    assert.ok(count >= 15, `${count} plots`);
    for (let place = 0; place < count; place += 1) {
      const id = await plots.nth(place).getAttribute("id");
      const drawn = await plots.nth(place).evaluate((plot) => ({
        lines: plot.querySelectorAll(".scatterlayer .trace path").length,
        cells: plot.querySelectorAll(".heatmaplayer image").length,
        box: plot.querySelector("svg.main-svg")?.getBoundingClientRect().width ?? 0,
      }));
      assert.ok(drawn.lines + drawn.cells > 0, `${id} is empty`);
      assert.ok(drawn.box > 100, `${id} is ${drawn.box} wide`);
    }
  },

  async "a click in the legend switches a run off and on"({ page }) {
    const plot = page.locator("#query_norm");
    const shown = () => plot.evaluate((plot) =>
      plot._fullData.filter((trace) => trace.visible === true).length);
    const all = await shown();
    const entry = plot.locator(".legendtoggle").last();
    await entry.scrollIntoViewIfNeeded();
    await entry.click();
    await page.waitForTimeout(800);
    assert.ok((await shown()) < all, "nothing went");
    await entry.click();
    await page.waitForTimeout(800);
    assert.equal(await shown(), all);
  },

  async "hovering shows the number with its interval"({ page }) {
    const plot = page.locator("#score_gradient_by_d");
    await plot.scrollIntoViewIfNeeded();
    const point = plot.locator(".scatterlayer .trace .point").first();
    const box = await point.boundingBox();
    await page.mouse.move(box.x + box.width / 2, box.y + box.height / 2);
    const label = plot.locator(".hoverlayer .hovertext");
    await label.first().waitFor({ timeout: 5_000 });
    assert.match(await label.first().textContent(), /d \d+: .*\(.* to .*\)/);
  },

  async "the button switches between light and dark, plots included"({ page }) {
    const text = () => page.evaluate(() =>
      document.querySelector("#query_norm")._fullLayout.font.color);
    const before = [await background(page), await text()];
    await page.locator("#scheme").click();
    await page.waitForTimeout(500);
    const after = [await background(page), await text()];
    assert.notEqual(after[0], before[0]);
    assert.notEqual(after[1], before[1]);
    await page.locator("#scheme").click();
    await page.waitForTimeout(500);
    assert.deepEqual([await background(page), await text()], before);
  },
};

async function check(name, body) {
  try {
    await body();
    console.log(`ok   ${name}`);
  } catch (error) {
    console.log(`FAIL ${name}\n${error.stack}`);
    process.exitCode = 1;
  }
}

try {
  const schemes = {};
  for (const scheme of ["light", "dark"]) {
    await check(`in ${scheme}: opens without a complaint or a request`, async () => {
      const opened = await open({ colorScheme: scheme, viewport: { width: 1280, height: 900 } });
      schemes[scheme] = await background(opened.page);
      await opened.page.screenshot({ path: join(shots, `${scheme}.png`), fullPage: true });
      for (const [name, test] of Object.entries(tests)) {
        await check(`in ${scheme}: ${name}`, () => test(opened));
      }
      await opened.close();
    });
  }
  await check("the dark scheme has another background", () => {
    assert.notEqual(schemes.dark, schemes.light);
  });
  for (const width of [360, 768]) {
    await check(`at a width of ${width}: nothing is wider than the page`, async () => {
      const opened = await open({ viewport: { width, height: 740 }, hasTouch: width < 400 });
      const wide = await opened.page.evaluate(() => document.documentElement.scrollWidth);
      assert.ok(wide <= width, `the page is ${wide} wide`);
      await opened.page.screenshot({ path: join(shots, `width-${width}.png`), fullPage: true });
      await opened.close();
    });
  }
} finally {
  await browser.close();
}
