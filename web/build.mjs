// Builds the bundles that are committed beside the Python; `--check` only says whether they are up to date.
import { build } from "esbuild";
import { mkdir, readFile, writeFile } from "node:fs/promises";
import { basename, dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";

const here = dirname(fileURLToPath(import.meta.url));
const package_ = join(here, "../src/lostflops");
const LIBRARIES = ["preact", "@preact/signals", "@preact/signals-core"];
// Each script may be `largest` bytes when gzipped.
const BUNDLES = [
  { name: "report", into: join(package_, "report/assets"), largest: 32 * 1024 },
  { name: "viewer", into: join(package_, "viewer/assets"), largest: 60 * 1024, modules: ["widget"] },
];

let stale = false;
for (const bundle of BUNDLES) {
  await mkdir(bundle.into, { recursive: true });
  for (const file of [...(await built(bundle)), await licences(bundle)]) {
    const name = basename(file.path);
    const size = gzipSync(file.contents, { level: 9 }).length;
    if (name.endsWith(".js") && size > bundle.largest) {
      throw new Error(`${name} is ${size} bytes gzipped, more than ${bundle.largest}`);
    }
    // A text that ended its element would break out of the page that carries it.
    if (/<\/(script|style)|<!--/i.test(file.text)) throw new Error(`${name} holds text that HTML would read as markup`);
    const place = join(bundle.into, name);
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
}
process.exit(stale ? 1 : 0);

async function built({ name, into, modules = [] }) {
  const page = await bundled([`${name}/${name}.tsx`, `${name}/${name}.css`], into, "iife");
  const others = modules.length ? await bundled(modules.map((one) => `${name}/${one}.ts`), into, "esm") : [];
  return [...page, ...others];
}

async function bundled(entryPoints, into, format) {
  const result = await build({
    absWorkingDir: here,
    entryPoints,
    outdir: into,
    entryNames: "[name]",
    bundle: true,
    minify: true,
    format,
    target: ["es2022", "chrome105", "firefox113", "safari16.4"],
    jsx: "automatic",
    jsxImportSource: "preact",
    legalComments: "none",
    banner: format === "esm" ? {} : { js: "/* Holds Preact and its signals: (c) Jason Miller, (c) Preact Team; MIT licence. */" },
    charset: "utf8",
    write: false,
  });
  return result.outputFiles;
}

// What is bundled asks for its licence to travel with it.
async function licences({ name }) {
  const texts = [];
  for (const library of LIBRARIES) {
    texts.push(`${library}\n\n${await readFile(join(here, "node_modules", library, "LICENSE"), "utf8")}`);
  }
  const text = `${name}.js holds these libraries.\n\n${texts.join("\n\n")}`;
  return { path: "LICENSES.txt", contents: Buffer.from(text), text: "" };
}
