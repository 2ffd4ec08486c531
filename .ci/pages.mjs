// What .ci/pages does in the browser. Each failure is a line; there must be none. Times are
// printed and never judged: machines of two busy cores are slow.
import { execFileSync, spawn } from "node:child_process";
import { once } from "node:events";
import { cpSync, existsSync, mkdirSync, readFileSync, rmSync, statSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { createServer } from "node:net";
import { pathToFileURL } from "node:url";

const { chromium } = createRequire(import.meta.url)("playwright-core");
const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const [hetal, browserPath, scratch, shots] = process.argv.slice(2);
// No graphics card, no shared memory of a size that containers lack, nothing that asks the network.
const QUIET =
  "--no-sandbox --disable-gpu --disable-dev-shm-usage --disable-quic --no-first-run --disable-background-networking --disable-component-update --disable-sync";
const PHASES = ["making keys", "encrypting rows", "sending rows", "server: training", "server: validating"];
const WIDTHS = [360, 1024, 1600];
const SET = "insecure-toy11";
// How long anything may take. Waiting this long is a failure of the machine.
const PATIENCE = 600_000;
const failures = [];
const check = (good, what) => good || failures.push(what);

const children = [];
function start(program, words) {
  const child = spawn(program, words, { stdio: ["ignore", "pipe", "inherit"] });
  children.push(child);
  child.output = "";
  child.stdout.on("data", (text) => (child.output += text));
  return child;
}

async function ended(child, what) {
  if (child.exitCode === null) await once(child, "exit");
  check(child.exitCode === 0, `${what} ended with ${child.exitCode}`);
}

// A program that still writes would put files back into the folder that is deleted after it.
async function end(child) {
  if (child.exitCode !== null || child.signalCode !== null) return;
  const gone = once(child, "exit");
  child.kill();
  const timer = setTimeout(() => child.kill("SIGKILL"), 30_000);
  await gone;
  clearTimeout(timer);
}

async function until(good, what) {
  for (const end = Date.now() + PATIENCE; !(await good()); ) {
    if (Date.now() > end) throw new Error(`waited ${PATIENCE / 1000} seconds for ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

async function freePort() {
  const server = createServer().listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address();
  server.close();
  return port;
}

async function ui(...folders) {
  const child = start(hetal, ["ui", "--json", ...folders.flatMap((folder) => ["--dir", folder])]);
  await until(() => child.output.includes("\n"), "the address of hetal ui");
  return JSON.parse(child.output).url;
}

// A page that may load nothing from elsewhere, and must not complain.
async function open(browser, address, width = 1024, colorScheme = "light") {
  const context = await browser.newContext({ viewport: { width, height: 900 }, colorScheme });
  context.setDefaultTimeout(PATIENCE);
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
  for (const width of WIDTHS) {
    for (const scheme of ["light", "dark"]) {
      const page = await open(browser, address, width, scheme);
      await inspect(page, `${name}, ${width} ${scheme}`);
      await page.screenshot({ path: `${shots}/${name}-${width}-${scheme}.png`, fullPage: true });
      await page.context().close();
    }
  }
}

const paint = (page) => page.evaluate(() => performance.getEntriesByName("first-contentful-paint")[0]?.startTime);

// A copy of a project as it is just now. Its training seems to go on: this process stands for it.
function freeze(owner) {
  const folder = `${scratch}/frozen`;
  for (let left = 20; ; left--) {
    try {
      rmSync(folder, { recursive: true, force: true });
      cpSync(owner, folder, { recursive: true });
      break;
    } catch (error) {
      // Files are replaced while they are copied.
      if (left === 0) throw error;
    }
  }
  const path = `${folder}/jobs/demo/progress.json`;
  const stat = readFileSync("/proc/self/stat", "utf8");
  const started = Number(stat.slice(stat.lastIndexOf(")") + 2).split(" ")[19]);
  writeFileSync(path, JSON.stringify({ ...JSON.parse(readFileSync(path)), process: [process.pid, started], ended: false }));
  return folder;
}

// From the first byte to the report, without a mouse and without loading the page again.
async function watchTraining(browser) {
  const words = "--columns 64 --rows 1024 --batch 64 --epochs 6 --verdict-delay-ms 1500".split(" ");
  const demo = start(hetal, ["demo", "--set", SET, ...words, "--dir", `${scratch}/demo`]);
  const owner = `${scratch}/demo/owner`;
  await until(() => existsSync(`${owner}/project.json`), "a project");
  const address = await ui(owner);
  const page = await open(browser, address);
  await page.locator(".card a").waitFor();
  await page.keyboard.press("Tab");
  check(await page.locator(".skip").evaluate((link) => link === document.activeElement), "the first stop is the skip link");
  await page.locator(".card a").focus();
  await page.keyboard.press("Enter");
  await page.locator("h1").filter({ hasText: "demo" }).waitFor();
  const seen = new Set();
  const look = setInterval(async () => {
    const phase = await page.locator(".now strong").first().textContent({ timeout: 500 }).catch(() => null);
    if (phase) seen.add(phase);
  }, 100);
  await page.locator("#learning svg.chart").first().waitFor();
  const training = page.url();
  await page.locator("#learning summary").first().focus();
  await page.keyboard.press("Enter");
  await page.locator("#learning tbody tr:nth-child(3)").waitFor();
  const frozen = freeze(owner);
  await page.locator("#quality").waitFor();
  clearInterval(look);
  check(await page.locator("#learning details").first().evaluate((one) => one.open), "what was opened stays open");
  await ended(demo, "the demo");
  const record = JSON.parse(await (await fetch(`${training}?json`)).text());
  const names = record.phases.map((phase) => phase.name);
  PHASES.forEach((phase) => check(names.includes(phase), `no phase ${phase}: ${names}`));
  check(seen.size > 0 && [...seen].every((phase) => names.includes(phase)), `saw ${[...seen].join(", ")}`);
  const shown = await page.locator(".tiles data").first().getAttribute("value");
  check(Number(shown) === record.outcome.accuracy, `${shown} is not the accuracy ${record.outcome.accuracy}`);
  console.log(`live page: first paint ${Math.round(await paint(page))} ms`);
  const still = await ui(frozen);
  await photograph(browser, `${still}0/demo`, "live");
  await photograph(browser, still, "overview");
  return owner;
}

async function report(browser, owner) {
  const file = `${owner}/reports/demo.html`;
  console.log(`report: ${Math.round(statSync(file).size / 1000)} kB`);
  check(statSync(file).size < 300000, "the report is too heavy");
  await photograph(browser, pathToFileURL(file).href, "report");
}

// A project of 200 trainings, and one of none.
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
  const address = await ui(folder);
  const began = Date.now();
  const page = await open(browser, address);
  check((await page.locator("tbody tr").count()) === 200, "200 models are listed");
  console.log(`overview of 200 trainings: ${Date.now() - began} ms, first paint ${Math.round(await paint(page))} ms`);
  await inspect(page, "200 trainings");
  rmSync(`${folder}/models`, { recursive: true });
  await photograph(browser, await ui(folder), "empty");
}

// Two clusters that overlap.
function table(rows) {
  const noise = (row, k) => ((row * 7919 + k * 104729) % 1000) / 500 - 1;
  const line = (row) => `${((row % 2) + noise(row, 0)).toFixed(4)},${noise(row, 1).toFixed(4)},${["ant", "bee"][row % 2]}`;
  return ["a,b,kind", ...Array.from({ length: rows }, (_, row) => line(row))].join("\n");
}

// The page of the operator of a running server: before anybody came, and while a tenant trains.
async function operator(browser) {
  const program = hetal.replace(/hetal$/, "hetal-server");
  if (!existsSync(program)) return check(false, `there is no ${program}: build it too`);
  const folder = `${scratch}/operator`;
  mkdirSync(folder);
  const tenants = ["clinic-a", "clinic-b"].map((name) => execFileSync(program, ["token", name], { encoding: "utf8" }));
  const [port, metrics] = [await freePort(), await freePort()];
  const lines = [`folder = "${folder}/server"`, `address = "127.0.0.1:${port}"`, `metrics = "127.0.0.1:${metrics}"`];
  lines.push(`sets = ["${SET}"]`, 'engine = "cpu"', ...tenants.map((text) => text.slice(text.indexOf("[[tenants]]"))));
  writeFileSync(`${folder}/server.toml`, lines.join("\n"));
  children.push(spawn(program, ["--config", `${folder}/server.toml`, "--allow-insecure"], { stdio: "ignore" }));
  const address = `http://127.0.0.1:${metrics}/`;
  await until(() => fetch(address).then((answer) => answer.ok, () => false), "the operator's page");
  await photograph(browser, address, "operator-idle");

  writeFileSync(`${folder}/rows.csv`, table(600));
  writeFileSync(`${folder}/token`, tenants[0].match(/^[0-9a-f]{64}$/m)[0], { mode: 0o600 });
  const words = `--features ${folder}/rows.csv --label-column kind --epochs 40 --batch 32 --rate 0.02 --patience 10 --verdict-delay-ms 3000`;
  const connection = `--server 127.0.0.1:${port} --authority ${folder}/server/tls/authority.pem --token-file ${folder}/token`;
  const training = start(hetal, ["train", "--set", SET, "--dir", `${folder}/owner`, ...words.split(" "), ...connection.split(" ")]);
  const metric = async (name) => Number((await (await fetch(`${address}metrics`)).text()).match(new RegExp(`^${name} (.*)$`, "m"))?.[1]);
  await until(async () => (await metric("hetal_iterations_total")) > 20 || training.exitCode !== null, "iterations");
  const page = await open(browser, address);
  const [first] = [await metric("hetal_iterations_total")];
  const shown = Number(await page.locator(".tiles li", { hasText: "iterations" }).locator("data").getAttribute("value"));
  check(shown > 20 && shown <= first, `the page shows ${shown} iterations, the metrics ${first}`);
  check((await page.locator("main").innerText()).includes("clinic-a"), "the page names the tenant");
  await photograph(browser, address, "operator");
  training.kill();
}

const browser = await chromium.launch({ executablePath: browserPath, args: QUIET.split(" "), timeout: PATIENCE });
try {
  const owner = await watchTraining(browser);
  await report(browser, owner);
  await many(browser, owner);
  await operator(browser);
} catch (error) {
  failures.push(error.stack);
} finally {
  await browser.close();
  await Promise.all(children.map(end));
}
[...new Set(failures)].forEach((failure) => console.log(`pages: ${failure}`));
console.log(`pages: ${failures.length ? "FAILED" : `passed, screenshots in ${shots}`}`);
process.exit(failures.length ? 1 : 0);
