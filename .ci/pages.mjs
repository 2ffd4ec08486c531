// What .ci/pages does in the browser. Each failure is a line; there must be none.
import { execFileSync, spawn } from "node:child_process";
import { once } from "node:events";
import { cpSync, existsSync, readFileSync, statSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const { chromium } = createRequire(import.meta.url)("playwright-core");
const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const [hetal, scratch, shots] = process.argv.slice(2);
const QUIET = "--disable-gpu --disable-quic --no-first-run --disable-background-networking --disable-component-update --disable-sync";
const PHASES = ["making keys", "encrypting rows", "sending rows", "server: training", "server: validating"];
const failures = [];
const check = (good, what) => good || failures.push(what);

const children = [];
function start(...words) {
  const child = spawn(hetal, words, { stdio: ["ignore", "pipe", "inherit"] });
  children.push(child);
  child.output = "";
  child.stdout.on("data", (text) => (child.output += text));
  return child;
}

async function until(good, what, seconds = 120) {
  for (const end = Date.now() + 1000 * seconds; !(await good()); ) {
    if (Date.now() > end) throw new Error(`waited ${seconds} seconds for ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

const url = async (...folders) => {
  const ui = start("ui", "--json", ...folders.flatMap((folder) => ["--dir", folder]));
  await until(() => ui.output.includes("\n"), "the address of hetal ui");
  return JSON.parse(ui.output).url;
};

// A page that may load nothing from elsewhere, and must not complain.
async function open(browser, address, width = 1024, colorScheme = "light") {
  const context = await browser.newContext({ viewport: { width, height: 900 }, colorScheme });
  const page = await context.newPage();
  const own = new URL(address).origin;
  page.on("request", (one) => check(/^(data|file):/.test(one.url()) || new URL(one.url()).origin === own, `asks ${one.url()}`));
  page.on("console", (one) => check(one.type() !== "error", `console: ${one.text()}`));
  page.on("pageerror", (error) => check(false, `script: ${error.message}`));
  await page.goto(address);
  return page;
}

async function inspect(page, name) {
  await page.evaluate(axe);
  const { violations } = await page.evaluate(() => window.axe.run());
  for (const { impact, id, nodes } of violations) {
    check(!["serious", "critical"].includes(impact), `${name}: axe: ${impact} ${id} at ${nodes[0].target}`);
  }
  const wide = await page.evaluate(() => document.documentElement.scrollWidth - window.innerWidth);
  check(wide <= 0, `${name}: ${wide} pixels too wide`);
}

async function photograph(browser, address, name) {
  for (const width of [360, 1024, 1600]) {
    for (const scheme of ["light", "dark"]) {
      const page = await open(browser, address, width, scheme);
      await inspect(page, `${name}, ${width} ${scheme}`);
      await page.screenshot({ path: `${shots}/${name}-${width}-${scheme}.png`, fullPage: true });
      await page.context().close();
    }
  }
}

const paint = (page) => page.evaluate(() => performance.getEntriesByName("first-contentful-paint")[0]?.startTime);

// From the first byte to the report, without a mouse and without loading the page again.
async function watchTraining(browser) {
  const demo = start("demo", "--set", "insecure-toy11", "--columns", "64", "--rows", "1024", "--batch", "64", "--epochs", "6",
    "--verdict-delay-ms", "1500", "--dir", `${scratch}/demo`);
  const owner = `${scratch}/demo/owner`;
  await until(() => existsSync(`${owner}/project.json`), "a project");
  const address = await url(owner);
  const page = await open(browser, address);
  await page.locator(".card a").waitFor({ timeout: 60000 });
  await page.keyboard.press("Tab");
  check(await page.locator(".skip").evaluate((link) => link === document.activeElement), "the first stop is the skip link");
  await page.locator(".card a").focus();
  await page.keyboard.press("Enter");
  await page.locator("h1").filter({ hasText: "demo" }).waitFor();
  const seen = new Set();
  let taken = false;
  const look = setInterval(async () => {
    const phase = await page.locator(".now strong").first().textContent({ timeout: 500 }).catch(() => null);
    if (phase) seen.add(phase);
  }, 100);
  await page.locator("#learning svg.chart").first().waitFor({ timeout: 120000 });
  const training = page.url();
  await page.locator("#learning summary").focus();
  await page.keyboard.press("Enter");
  if (demo.exitCode === null) {
    taken = true;
    await photograph(browser, training, "live");
    await photograph(browser, address, "overview");
  }
  await page.locator("#quality").waitFor({ timeout: 300000 });
  clearInterval(look);
  check(taken, "the training ended before it was photographed");
  check(await page.locator("#learning details").evaluate((one) => one.open), "what was opened stays open");
  check(seen.has("server: training"), `saw only ${[...seen].join(", ")}`);
  if (demo.exitCode === null) await once(demo, "exit");
  check(demo.exitCode === 0, `the demo ended with ${demo.exitCode}`);
  const record = JSON.parse(await (await fetch(`${training}?json`)).text());
  const names = record.phases.map((phase) => phase.name);
  PHASES.forEach((phase) => check(names.includes(phase), `no phase ${phase}: ${names}`));
  const shown = await page.locator(".tiles data").first().getAttribute("value");
  check(Number(shown) === record.outcome.accuracy, `${shown} is not the accuracy ${record.outcome.accuracy}`);
  console.log(`live page: first paint ${Math.round(await paint(page))} ms`);
  return owner;
}

async function report(browser, owner) {
  const file = `${owner}/reports/demo.html`;
  console.log(`report: ${Math.round(statSync(file).size / 1000)} kB`);
  check(statSync(file).size < 300000, "the report is too heavy");
  await photograph(browser, pathToFileURL(file).href, "report");
}

// A project of 200 trainings.
async function many(browser, owner) {
  const model = JSON.parse(readFileSync(`${owner}/models/demo.json`));
  const record = JSON.parse(readFileSync(`${owner}/reports/demo.json`));
  const folder = `${scratch}/many`;
  cpSync(owner, folder, { recursive: true });
  for (let k = 0; k < 199; k++) {
    const name = `sweep-${k}`;
    writeFileSync(`${folder}/models/${name}.json`, JSON.stringify({ ...model, name }));
    writeFileSync(`${folder}/reports/${name}.json`, JSON.stringify({ ...record, name }));
  }
  const address = await url(folder);
  const began = Date.now();
  const page = await open(browser, address);
  check((await page.locator("tbody tr").count()) === 200, "200 models are listed");
  console.log(`overview of 200 trainings: ${Date.now() - began} ms, first paint ${Math.round(await paint(page))} ms`);
  await inspect(page, "200 trainings");
}

// The page of the operator, from the server beside this hetal. It has served nobody yet.
async function operator(browser) {
  const server = hetal.replace(/hetal$/, "hetal-server");
  if (!existsSync(server)) return console.log(`operator's page: skipped, there is no ${server}`);
  const tenant = execFileSync(server, ["token", "ann"], { encoding: "utf8" });
  const port = 20000 + (process.pid % 20000);
  const lines = [`folder = "${scratch}/server"`, `address = "127.0.0.1:${port}"`, `metrics = "127.0.0.1:${port + 1}"`,
    'sets = ["insecure-toy11"]', 'engine = "cpu"', tenant.slice(tenant.indexOf("[[tenants]]"))];
  writeFileSync(`${scratch}/server.toml`, lines.join("\n"));
  children.push(spawn(server, ["--config", `${scratch}/server.toml`, "--allow-insecure"], { stdio: "ignore" }));
  const address = `http://127.0.0.1:${port + 1}/`;
  await until(() => fetch(address).then((answer) => answer.ok, () => false), "the operator's page");
  await photograph(browser, address, "operator");
}

const browser = await chromium.launch({ executablePath: "/usr/bin/chromium", args: ["--no-sandbox", ...QUIET.split(" ")] });
try {
  const owner = await watchTraining(browser);
  await report(browser, owner);
  await many(browser, owner);
  await operator(browser);
} catch (error) {
  failures.push(error.stack);
} finally {
  await browser.close();
  children.forEach((child) => child.kill());
}
[...new Set(failures)].forEach((failure) => console.log(`pages: ${failure}`));
console.log(`pages: ${failures.length ? "FAILED" : `passed, screenshots in ${shots}`}`);
process.exit(failures.length ? 1 : 0);
