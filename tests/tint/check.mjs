// Compiles every .wgsl file of a folder with Tint, the WGSL compiler of Chrome, through Dawn's bindings for node.
//
//   node check.mjs FOLDER            compiles the texts that accepted.txt does not have
//   node check.mjs --all FOLDER      compiles all of them
//   node check.mjs --accept FOLDER   compiles all of them, and writes accepted.txt where none is refused
//
// naga, which wgpu compiles with, does no analysis of uniformity; browsers refuse what it lets pass. So each module is
// created here, and a pipeline of its entry point, on a device with WebGPU's default limits and no optional feature.
// Files in planted/ have a fault each, and must be refused, or the check itself has failed.
//
// accepted.txt lists the texts that Tint has accepted, by their SHA-256, in the order of their names. Its head names the version of Tint: a list that
// another version, or another check, made counts for nothing.

import { createHash } from 'node:crypto';
import { readFileSync, readdirSync, writeFileSync } from 'node:fs';
import { basename, join } from 'node:path';
import { argv, exit } from 'node:process';
import { fileURLToPath } from 'node:url';

const fail = (message) => {
  console.error(`error: ${message}`);
  exit(1);
};

const words = argv.slice(2);
const accept = words.includes('--accept');
const all = accept || words.includes('--all');
const folders = words.filter((word) => word !== '--accept' && word !== '--all');
if (folders.length !== 1) {
  fail(
    'asked for one folder of .wgsl files: node check.mjs [--all | --accept] FOLDER; `cargo xtask shaders --out FOLDER` ' +
      'writes it',
  );
}
const folder = folders[0];

const LIST = fileURLToPath(new URL('accepted.txt', import.meta.url));
const { version } = JSON.parse(readFileSync(new URL('package-lock.json', import.meta.url), 'utf8')).packages[
  'node_modules/webgpu'
];
/** Of what a text must pass here: a larger number when that gets stricter. */
const CHECK = 1;
const HEAD = `# Accepted by check ${CHECK} with the Tint of webgpu ${version}; node tests/tint/check.mjs --accept FOLDER writes this file`;

/** A file's line of the list. The file's name counts, since it is the entry point of which a pipeline is made. */
const line = (path) => `${createHash('sha256').update(readFileSync(path)).digest('hex')} ${basename(path)}`;

/** The lines of the list; none where it is of another version. */
const listed = () => {
  let lines = [];
  try {
    lines = readFileSync(LIST, 'utf8').split('\n');
  } catch (error) {
    console.log(`${LIST} could not be read, so all texts are compiled: ${error.message}`);
    return new Set();
  }
  if (lines[0] !== HEAD) {
    console.log(`accepted.txt begins with "${lines[0]}", and this is check ${CHECK} with webgpu ${version}: all texts are compiled`);
    return new Set();
  }
  return new Set(lines.slice(1));
};

const { create } = await import('webgpu').catch((error) =>
  fail(`the package webgpu could not be loaded (${error.message}); run \`npm ci\` in tests/tint`),
);

/** The .wgsl files of a folder, in order. */
const shadersOf = (path) => {
  let names = [];
  try {
    names = readdirSync(path).filter((name) => name.endsWith('.wgsl'));
  } catch (error) {
    fail(`${path} could not be read: ${error.message}`);
  }
  return names.sort().map((name) => join(path, name));
};

/** What Tint and Dawn object to in a file, whose entry point has the file's name; empty where they accept it. */
const objections = async (device, path) => {
  const found = [];
  device.pushErrorScope('validation');
  const module = device.createShaderModule({ label: path, code: readFileSync(path, 'utf8') });
  const { messages } = await module.getCompilationInfo();
  for (const { type, lineNum, linePos, message } of messages) {
    // A warning is what a later version will refuse.
    if (type !== 'info') {
      found.push(`${lineNum}:${linePos} ${type}: ${message}`);
    }
  }
  const scope = await device.popErrorScope();
  if (found.length === 0 && scope !== null) {
    found.push(scope.message);
  }
  if (found.length === 0) {
    // Only now are binding layouts, the limits and the translation for the driver looked at.
    const compute = { module, entryPoint: basename(path, '.wgsl') };
    await device.createComputePipelineAsync({ label: path, layout: 'auto', compute }).catch((error) => {
      found.push(`no pipeline: ${error.message}`);
    });
  }
  return found;
};

// Dawn holds node open for as long as its instance can be reached, so the end is an explicit exit.
const gpu = create(['backend=vulkan']);
const adapter = await gpu.requestAdapter();
if (adapter === null) {
  fail(
    'Dawn accepts none of the Vulkan devices here (its warnings above say why); it needs a driver newer than the lavapipe ' +
      "of Mesa 22, such as SwiftShader: VK_DRIVER_FILES=.../vk_swiftshader_icd.json",
  );
}
const device = await adapter.requestDevice();
console.log(`Tint, on ${adapter.info.description} (${adapter.info.architecture})`);

let passed = 0;
let failed = 0;
const verdict = (path, good, lines) => {
  console.log(`${good ? 'ok    ' : 'FAILED'} ${basename(path)}${lines.map((line) => `\n         ${line}`).join('')}`);
  passed += good ? 1 : 0;
  failed += good ? 0 : 1;
};

const shaders = shadersOf(folder);
if (shaders.length === 0) {
  fail(`${folder} holds no .wgsl file; \`cargo xtask shaders --out ${folder}\` writes them`);
}
const known = all ? new Set() : listed();
const unknown = shaders.filter((path) => !known.has(line(path)));
console.log(`${unknown.length} of ${shaders.length} texts are compiled${all ? '' : '; accepted.txt has the others'}`);
// Two at a time: what a driver makes of a pipeline takes a core. Error scopes are a device's, so each has its own.
const left = [...unknown];
const compile = async (device) => {
  for (let path = left.shift(); path !== undefined; path = left.shift()) {
    const found = await objections(device, path);
    verdict(path, found.length === 0, found);
  }
};
const second = await gpu.requestAdapter();
if (second === null) {
  fail('Dawn gave an adapter once, and none the second time; run it again, or look at its warnings above');
}
const other = await second.requestDevice();
await Promise.all([compile(device), compile(other)]);
other.destroy();

// Each planted fault with the words that it must be refused with, so that another mistake in the file does not pass for it.
const PLANTED = { 'nonuniform_barrier.wgsl': /'workgroupBarrier' must only be called from uniform control flow/ };
for (const [name, reason] of Object.entries(PLANTED)) {
  const path = join(fileURLToPath(new URL('planted', import.meta.url)), name);
  const found = await objections(device, path);
  const refused = found.some((line) => reason.test(line));
  verdict(path, refused, refused ? [`refused, as it must be: ${found[0]}`] : ['accepted, and it must be refused', ...found]);
}

if (failed === 0 && accept) {
  writeFileSync(LIST, [HEAD, ...shaders.map(line), ''].join('\n'));
  console.log(`wrote ${LIST}`);
} else if (failed === 0 && !all && unknown.length > 0) {
  console.log('the next run need not compile these: `node tests/tint/check.mjs --accept FOLDER`, and commit the list');
}
console.log(`${passed} passed, ${failed} failed`);
device.destroy();
exit(failed === 0 ? 0 : 1);
