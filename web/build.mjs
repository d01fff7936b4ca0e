// Builds the bundles that are committed beside the Python; `--check` only says whether they are up to date.
import { build } from "esbuild";
import { mkdir, readFile, writeFile } from "node:fs/promises";
import { basename, dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";

const here = dirname(fileURLToPath(import.meta.url));
const into = join(here, "../src/lostflops/report/assets");
const LARGEST = 32 * 1024; // gzipped script

const result = await build({
  absWorkingDir: here,
  entryPoints: ["report/report.tsx", "report/report.css"],
  outdir: into,
  entryNames: "[name]",
  bundle: true,
  minify: true,
  format: "iife",
  target: ["es2022", "chrome105", "firefox113", "safari16.4"],
  jsx: "automatic",
  jsxImportSource: "preact",
  legalComments: "none",
  banner: { js: "/* Holds Preact and its signals: (c) Jason Miller, (c) Preact Team; MIT licence. */" },
  charset: "utf8",
  write: false,
});

// What is bundled asks for its licence to travel with it.
const licences = [];
for (const name of ["preact", "@preact/signals", "@preact/signals-core"]) {
  licences.push(`${name}\n\n${await readFile(join(here, "node_modules", name, "LICENSE"), "utf8")}`);
}
const notice = Buffer.from(`report.js holds these libraries.\n\n${licences.join("\n\n")}`);

let stale = false;
await mkdir(into, { recursive: true });
for (const file of [...result.outputFiles, { path: "LICENSES.txt", contents: notice, text: "" }]) {
  const name = basename(file.path);
  const size = gzipSync(file.contents, { level: 9 }).length;
  if (name.endsWith(".js") && size > LARGEST) throw new Error(`${name} is ${size} bytes gzipped, more than ${LARGEST}`);
  // A text that ended its element would break out of the page that carries it.
  if (/<\/(script|style)|<!--/i.test(file.text)) throw new Error(`${name} holds text that HTML would read as markup`);
  const place = join(into, name);
  if (process.argv.includes("--check")) {
    const committed = await readFile(place).catch(() => null);
    if (!committed?.equals(file.contents)) {
      console.error(`${name} is not what the sources build to; run: npm run build`);
      stale = true;
    }
  } else {
    await writeFile(place, file.contents);
    console.log(`${name}: ${file.contents.length} bytes, ${size} gzipped`);
  }
}
process.exit(stale ? 1 : 0);
