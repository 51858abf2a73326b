//! The stages of continuous integration, in the order in which they run.

use super::stage::{Class, Stage};

/// What every build of the workspace depends on.
const MANIFESTS: &[&str] = &["Cargo.toml", "Cargo.lock", ".cargo", "*/Cargo.toml"];
/// The crate gradwire, with the arithmetic that its CPU backend runs.
const LIBRARY: &[&str] = &["kernels-gpu", "host/src", "shaders"];
/// What starts a kernel of the WGPU backend.
const WGPU: &[&str] = &["shaders", "host/src/backend/mod.rs", "host/src/backend/wgpu", "host/src/plan"];
/// What starts a kernel of the CUDA backend.
const CUDA: &[&str] = &["ptx", "host/src/backend/mod.rs", "host/src/backend/cuda", "host/src/plan"];
/// The stand-ins for NVIDIA's libraries, and the machine that runs PTX in them.
const STAND_INS: &[&str] = &["tests/cuda-stand-in", "tests/nccl-stand-in", "tests/ptx-machine"];
/// The wheels of ptxas and nvdisasm, by their versions and hashes.
const INSTALL: &[&str] = &[".ci/install"];

const RUSTC: &str = "rustc -vV";
const NIGHTLY: &str = "rustc +nightly -vV 2>/dev/null || rustc +nightly-2026-05-20 -vV";
const SWIFTSHADER: &str = "cat \"$GRADWIRE_CI_STAMPS/swiftshader/version\"";

/// Mesa's device in software alone answers, whatever else the machine has, so that every run tests the same thing.
const ON_LAVAPIPE: &str = "VK_DRIVER_FILES=$(echo /usr/share/vulkan/icd.d/lvp_icd*.json)";
const ON_SWIFTSHADER: &str = "VK_DRIVER_FILES=$GRADWIRE_CI_STAMPS/swiftshader/vk_swiftshader_icd.json";

/// What a stage is that says nothing else.
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
        what: "every 37th call of a driver fails, for every operation",
        needs: &["lavapipe"],
        settings: &[ON_LAVAPIPE],
        // All calls take an hour. A step that shares no factor with the calls' own rhythm meets every kind of call.
        lines: &["xtask faults --every 37"],
        ..STAGE
    },
    Stage {
        name: "openmpi",
        what: "the collectives over OpenMPI",
        lines: &["xtask mpi --library 'OpenMPI 5'"],
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
            files: &[MANIFESTS, &["kernels-gpu", "ptx", "host/src/plan", "xtask/src/ptx.rs", "xtask/src/ptx"], INSTALL],
            tools: &[NIGHTLY],
        },
        ..STAGE
    },
    Stage {
        name: "sass",
        what: "the machine code of the kernels is what docs/sass.md says, and gives what the CPU gives",
        needs: &["ptxas"],
        lines: &["xtask sass --check"],
        class: Class::Rotation {
            files: &[
                CUDA,
                INSTALL,
                &["xtask/src/sass", "docs/sass.md", "benches/results/h100-2026-11-26", "tests/src"],
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
            files: &[&["shaders", "tests/tint", "xtask/src/shaders.rs"]],
            tools: &["node --version", SWIFTSHADER],
        },
    },
    Stage {
        name: "swiftshader",
        what: "the WGPU suite on a second driver",
        needs: &["lavapipe", "swiftshader"],
        // Another driver may differ in a shader: each of them runs in every path once. Inputs are swept on lavapipe.
        settings: &[ON_SWIFTSHADER, "GRADWIRE_REQUIRE=wgpu:SwiftShader", "GRADWIRE_DEPTH=quick"],
        lines: &["cargo test --release --locked --workspace --test wgpu suite::"],
        class: Class::Rotation {
            files: &[MANIFESTS, WGPU, &["tests/src", "tests/tests/wgpu"]],
            tools: &[RUSTC, SWIFTSHADER],
        },
        ..STAGE
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
                WGPU,
                CUDA,
                STAND_INS,
                &["host/src/embed", "host/examples", "adapters", "tests/src", "tests/tests/gpu", "xtask/src/embed.rs"],
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
            files: &[MANIFESTS, LIBRARY, &["examples/web", "xtask/src/web.rs", "xtask/src/web"]],
            tools: &[RUSTC, "chromium --version"],
        },
        ..STAGE
    },
    Stage {
        name: "examples",
        what: "the examples in candle and burn, checked and not built: most of the work is the framework's",
        lines: &[
            "cargo check --quiet --locked --manifest-path examples/candle/Cargo.toml --target-dir target/examples",
            "cargo check --quiet --locked --manifest-path examples/burn/Cargo.toml --target-dir target/examples",
        ],
        class: Class::Rotation {
            files: &[MANIFESTS, &["examples/candle", "examples/burn", "host/src", "kernels-gpu/src/lib.rs"]],
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
                STAND_INS,
                &["collectives", "planner/src", "host/src/compressor", "host/src/*collective.rs"],
                &["xtask/src/mpi.rs", "xtask/src/mpi", "xtask/src/bench/collective.rs", "xtask/src/plan.rs"],
            ],
            tools: &[RUSTC, "dpkg-query -W openmpi-bin mpich"],
        },
        ..STAGE
    },
    Stage {
        name: "sanitize",
        what: "the tests that need no GPU, under AddressSanitizer",
        needs: &["nightly"],
        lines: &["xtask sanitize"],
        class: Class::Rotation {
            files: &[MANIFESTS, LIBRARY, &["ptx/src", "tests/src", "tests/tests", "xtask/src/sanitize.rs"]],
            tools: &[NIGHTLY],
        },
        ..STAGE
    },
    Stage {
        name: "publish",
        what: "what publishing needs: contents, licences, each feature alone, the least Rust",
        needs: &["deny"],
        lines: &["xtask publish"],
        class: Class::Rotation {
            files: &[
                MANIFESTS,
                LIBRARY,
                &["host", "ptx", "planner", "collectives", "deny.toml", "LICENSE-*"],
                &["xtask/src/publish.rs", "xtask/src/publish", ".ci/install"],
            ],
            tools: &[RUSTC, "rustup toolchain list"],
        },
        ..STAGE
    },
];
