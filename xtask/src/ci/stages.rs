//! The stages of continuous integration, in the order in which they run.

use super::stage::{Class, Stage};

/// What every build of the workspace depends on.
const MANIFESTS: &[&str] = &["Cargo.toml", "Cargo.lock", ".cargo", "*/Cargo.toml"];
/// The crate gradwire, with the arithmetic that its CPU backend runs.
const LIBRARY: &[&str] = &["kernels-gpu", "host/src", "shaders"];
/// The WGPU backend: its kernels, and the code that launches them.
const WGPU: &[&str] = &["shaders", "host/src/backend/mod.rs", "host/src/backend/wgpu"];
/// The CUDA backend: its kernels, and the code that launches them.
const CUDA: &[&str] = &["ptx", "host/src/backend/mod.rs", "host/src/backend/cuda"];
/// The code that plans launches for both backends, and the kernels' parameters.
const PASSES: &[&str] = &[
    "kernels-gpu/src/params.rs",
    "kernels-gpu/src/presets*",
    "host/src/plan",
    "host/src/codec",
    "host/src/embed",
    "host/src/low_rank",
    "host/src/sparse",
    "host/src/model",
    "host/src/random",
    "host/src/rotation",
    "host/src/entropy",
    "host/src/vote*",
];
/// What runs a stage's lines, starts compilers and test programs, and counts what passed.
const RUNNER: &[&str] = &[
    "xtask/src/ci",
    "xtask/src/ci.rs",
    "xtask/src/test",
    "xtask/src/test.rs",
    "xtask/src/program.rs",
    "tools/common/src",
];
/// The stand-ins for NVIDIA's libraries, and the machine that runs PTX in them.
const STAND_INS: &[&str] = &["tests/cuda-stand-in", "tests/nccl-stand-in", "tests/ptx-machine"];
/// The wheels of ptxas and nvdisasm, by their versions and hashes.
const INSTALL: &[&str] = &[".ci/install"];

const RUSTC: &str = "rustc -vV";
const NIGHTLY: &str = "rustc +nightly -vV 2>/dev/null || rustc +nightly-2026-05-20 -vV";
const SWIFTSHADER: &str = "cat \"$GRADWIRE_CI_STAMPS/swiftshader/version\"";

/// Mesa's device in software alone answers, whatever else the machine has, so that every run tests the same thing.
const ON_LAVAPIPE: &str = "VK_DRIVER_FILES=$(ls /usr/share/vulkan/icd.d/lvp_icd*.json | head -n 1)";
const ON_SWIFTSHADER: &str = "VK_DRIVER_FILES=$GRADWIRE_CI_STAMPS/swiftshader/vk_swiftshader_icd.json";

/// The defaults.
const STAGE: Stage =
    Stage { name: "", what: "", needs: &[], settings: &[], lines: &[], whole: &[], class: Class::Always };

/// All of them.
pub(super) const STAGES: &[Stage] = &[
    Stage {
        name: "test",
        what: "formatting, lints, all tests on the CPU, the PTX machine and lavapipe, and the documentation",
        needs: &["lavapipe"],
        // The machine code has a stage of its own, so the tests find no assembler.
        settings: &[ON_LAVAPIPE, "GRADWIRE_REQUIRE=cpu,wgpu:llvmpipe", "GRADWIRE_PTXAS="],
        lines: &["xtask test"],
        ..STAGE
    },
    Stage {
        name: "faults",
        what: "every 37th call of a driver and every fifth long allocation fails, in every operation",
        needs: &["lavapipe"],
        settings: &[ON_LAVAPIPE],
        // All calls take an hour. A step that shares no factor with the calls' own rhythm meets every kind of call.
        lines: &["xtask faults --backend cpu --every 5", "xtask faults --every 37"],
        ..STAGE
    },
    Stage {
        name: "openmpi",
        what: "the collectives over OpenMPI",
        lines: &["xtask mpi --library 'OpenMPI 5'"],
        class: Class::Unless("mpi"),
        ..STAGE
    },
    Stage {
        name: "python",
        what: "the Python package: its wheel in a fresh environment, numpy, and PyTorch's hook over gloo",
        needs: &["torch"],
        settings: &["PYTHON=/usr/bin/python3", "GRADWIRE_REQUIRE_TORCH=1"],
        lines: &[
            "(cd python && cargo fmt --check)",
            "python/check.sh",
            "(cd python && cargo clippy --release --locked -- -D warnings)",
        ],
        ..STAGE
    },
    Stage {
        name: "ptx",
        what: "the committed PTX is what its sources give, and NVIDIA's assembler takes it",
        needs: &["nightly", "ptxas"],
        lines: &["xtask ptx --check"],
        whole: &["xtask ptx --check --depth full"],
        class: Class::Rotation {
            files: &[MANIFESTS, RUNNER, &["kernels-gpu", "ptx", "host/src/plan", "tools/ptx"], INSTALL],
            tools: &[NIGHTLY],
        },
        ..STAGE
    },
    Stage {
        name: "sass",
        what: "the machine code of the kernels is what docs/sass.md says, and gives what the CPU gives",
        needs: &["ptxas"],
        lines: &["xtask sass --check --drawn"],
        whole: &["xtask sass --check"],
        class: Class::Rotation {
            files: &[
                MANIFESTS,
                RUNNER,
                CUDA,
                PASSES,
                INSTALL,
                &["tools/sass", "tools/ptx", "docs/sass.md", "benches/results/h100-2026-11-26", "tests/src"],
            ],
            tools: &[RUSTC],
        },
        ..STAGE
    },
    Stage {
        name: "tint",
        what: "the shaders through Tint, the WGSL compiler of Chrome, which refuses barriers that naga lets pass",
        needs: &["lavapipe", "swiftshader", "tint"],
        settings: &[ON_SWIFTSHADER],
        lines: &[
            "rm -rf target/shaders && xtask shaders --out target/shaders",
            "node tests/tint/check.mjs target/shaders",
        ],
        whole: &[
            "rm -rf target/shaders && xtask shaders --out target/shaders",
            "node tests/tint/check.mjs --all target/shaders",
        ],
        class: Class::Rotation {
            files: &[RUNNER, &["shaders", "tests/tint", "tools/radv"]],
            tools: &["node --version", SWIFTSHADER],
        },
    },
    Stage {
        name: "swiftshader",
        what: "the WGPU suite on a second driver: a third of the codecs, drawn",
        needs: &["lavapipe", "swiftshader"],
        // Each shader runs once in every path on the other driver. Inputs are swept on lavapipe.
        settings: &[ON_SWIFTSHADER, "GRADWIRE_REQUIRE=wgpu:SwiftShader", "GRADWIRE_DEPTH=quick"],
        lines: &["GRADWIRE_SHARES=3 cargo test --release --locked --workspace --test wgpu suite::"],
        whole: &["cargo test --release --locked --workspace --test wgpu suite::"],
        class: Class::Rotation {
            files: &[MANIFESTS, RUNNER, WGPU, PASSES, &["tests/src", "tests/tests/wgpu"]],
            tools: &[RUSTC, SWIFTSHADER],
        },
    },
    Stage {
        name: "embed",
        what: "what embeds Gradwire: wgpu, cudarc and cust, on a stand-in for libcuda",
        needs: &["lavapipe"],
        settings: &[ON_LAVAPIPE],
        lines: &["xtask embed"],
        class: Class::Rotation {
            files: &[
                MANIFESTS,
                RUNNER,
                LIBRARY,
                STAND_INS,
                &["xtask/src/embed.rs", "ptx", "host/examples", "adapters", "tests/src", "tests/tests/gpu"],
            ],
            tools: &[RUSTC],
        },
        ..STAGE
    },
    Stage {
        name: "web",
        what: "the quickstart in a browser, on WebGPU",
        needs: &["browser"],
        lines: &["xtask web"],
        class: Class::Rotation {
            files: &[MANIFESTS, RUNNER, LIBRARY, &["examples/web", "tools/web"]],
            tools: &[RUSTC, "chromium --version"],
        },
        ..STAGE
    },
    Stage {
        name: "examples",
        what: "the example in candle or in burn, drawn; checked and not built: most of the work is the framework's",
        lines: &[
            "[ $((GRADWIRE_TURN % 2)) = 0 ] && framework=candle || framework=burn",
            "cargo check --quiet --locked --manifest-path examples/$framework/Cargo.toml --target-dir target/examples",
        ],
        whole: &[
            "cargo check --quiet --locked --manifest-path examples/candle/Cargo.toml --target-dir target/examples",
            "cargo check --quiet --locked --manifest-path examples/burn/Cargo.toml --target-dir target/examples",
        ],
        class: Class::Rotation {
            files: &[MANIFESTS, RUNNER, &["examples/candle", "examples/burn", "host/src", "kernels-gpu/src/lib.rs"]],
            tools: &[RUSTC],
        },
        ..STAGE
    },
    Stage {
        name: "mpi",
        what: "the collectives over MPI: OpenMPI, MPICH and the binary interface of MPI 5, and Debian's older two",
        needs: &["mpi"],
        lines: &["xtask mpi"],
        class: Class::Rotation {
            files: &[
                MANIFESTS,
                RUNNER,
                STAND_INS,
                &["collectives", "planner/src", "host/src/compressor", "host/src/*collective.rs"],
                &["host/src/codec", "host/src/backend/cpu", "kernels-gpu/src/arith", "kernels-gpu/src/integer"],
                &[
                    "xtask/src/mpi.rs",
                    "xtask/src/mpi",
                    "tools/bench/src/main.rs",
                    "tools/bench/src/bench/mod.rs",
                    "tools/bench/src/bench/collective.rs",
                    "tools/study/src/main.rs",
                    "tools/study/src/plan.rs",
                ],
            ],
            tools: &[RUSTC, "dpkg-query -W openmpi-bin mpich"],
        },
        ..STAGE
    },
    Stage {
        name: "sanitize",
        what: "the tests that need no GPU under AddressSanitizer, the fuzz targets, and Miri: a third, drawn",
        needs: &["nightly"],
        lines: &["xtask sanitize --drawn"],
        settings: &[],
        whole: &["xtask sanitize", "xtask fuzz --miri", "xtask fuzz --total 60"],
        class: Class::Rotation {
            files: &[
                MANIFESTS,
                RUNNER,
                LIBRARY,
                &["ptx/src", "collectives", "planner/src", "tests/src", "tests/tests", "tests/vectors"],
                &["xtask/src/sanitize.rs", "tools/fuzz", "fuzz"],
            ],
            tools: &[NIGHTLY],
        },
    },
    Stage {
        name: "publish",
        what: "what publishing needs: contents, licences, each feature alone, the least Rust",
        needs: &["deny"],
        lines: &["xtask publish"],
        class: Class::Rotation {
            files: &[
                MANIFESTS,
                RUNNER,
                LIBRARY,
                &["host", "ptx", "planner", "collectives", "deny.toml", "LICENSE-*"],
                &["xtask/src/publish.rs", "xtask/src/publish", ".ci/install"],
            ],
            tools: &[RUSTC, "rustup toolchain list"],
        },
        ..STAGE
    },
];
