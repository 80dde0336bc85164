// Runs models on onnxruntime-web in a page of a headless Chromium: one JSON line in, one out.
//
//     node web.mjs PROVIDER        (wasm or webgpu; NODE_MODULES has onnxruntime-web and puppeteer-core)
//
// In: {"model": base64, "inputs": {name: {"type", "shape", "data": base64}}, "outputs": [name]}
// Out: {"outputs": [{"shape", "data": base64}]}, all float32, or {"error": text}
import fs from "node:fs";
import http from "node:http";
import path from "node:path";
import readline from "node:readline";
import { createRequire } from "node:module";

const modules = process.env.NODE_MODULES;
const puppeteer = createRequire(path.join(modules, "x.js"))("puppeteer-core");
const dist = path.join(modules, "onnxruntime-web", "dist");
const types = { ".mjs": "text/javascript", ".js": "text/javascript", ".wasm": "application/wasm" };

const server = http.createServer((request, response) => {
  const name = path.basename(new URL(request.url, "http://x").pathname);
  const file = path.join(dist, name);
  if (!name || !fs.existsSync(file)) {
    response.setHeader("Content-Type", "text/html");
    response.end("<!doctype html><script src='/ort.all.min.js'></script>");
    return;
  }
  response.setHeader("Content-Type", types[path.extname(file)] ?? "application/octet-stream");
  response.end(fs.readFileSync(file));
});
await new Promise((done) => server.listen(0, "127.0.0.1", done));

const browser = await puppeteer.launch({
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  args: ["--no-sandbox", "--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader", "--enable-features=Vulkan"],
});
const page = await browser.newPage();
await page.goto(`http://127.0.0.1:${server.address().port}/`);
await page.evaluate(() => { ort.env.wasm.numThreads = 1; ort.env.logLevel = "error"; });

async function run(job, provider) {
  const bytes = (text) => Uint8Array.from(atob(text), (one) => one.charCodeAt(0));
  const arrays = { float32: Float32Array, int32: Int32Array };
  try {
    const session = await ort.InferenceSession.create(bytes(job.model), { executionProviders: [provider] });
    const feeds = {};
    for (const [name, { type, shape, data }] of Object.entries(job.inputs)) {
      feeds[name] = new ort.Tensor(type, new arrays[type](bytes(data).buffer), shape);
    }
    const results = await session.run(feeds);
    const outputs = [];
    for (const name of job.outputs) {
      const data = new Uint8Array(new Float32Array(await results[name].getData()).buffer);
      outputs.push({ shape: [...results[name].dims], data: btoa(String.fromCharCode(...data)) });
    }
    await session.release();
    return { outputs };
  } catch (error) {
    return { error: String(error?.message ?? error).slice(0, 500) };
  }
}

for await (const line of readline.createInterface({ input: process.stdin })) {
  console.log(JSON.stringify(await page.evaluate(run, JSON.parse(line), process.argv[2])));
}
await browser.close();
server.close();
