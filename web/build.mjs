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
  charset: "utf8",
  write: false,
});

let stale = false;
await mkdir(into, { recursive: true });
for (const file of result.outputFiles) {
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
