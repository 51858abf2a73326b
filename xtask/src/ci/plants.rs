//! Faults that a run of continuous integration must find: each is planted in a copy of the last commit.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Instant;

use gradwire_tools::repository::git;

use super::plant::{By, Plant};

const fn test(program: &'static str, path: &'static str) -> By {
    By::Test { program, path, codec: "" }
}

const fn of(codec: &'static str, program: &'static str, path: &'static str) -> By {
    By::Test { program, path, codec }
}

const PLANTS: &[Plant] = &[
    Plant {
        name: "kernel without new PTX",
        file: "kernels-gpu/src/arith/qsgd.rs",
        find: "top / levels as f32",
        replace: "top / (levels + 1) as f32",
        stage: "ptx",
        by: By::Command { words: &["ptx", "--check"], says: "was not made of these sources" },
    },
    Plant {
        name: "circle of imports",
        file: "xtask/src/ci/stage.rs",
        find: "//! What a stage of continuous integration is.\n",
        replace: "//! What a stage of continuous integration is.\n\nuse super::plan::Does as _;\n",
        stage: "test",
        by: test("tools", "imports::"),
    },
    Plant {
        name: "test file without a module",
        file: "tests/tests/cpu/main.rs",
        find: "mod bounds;\n",
        replace: "",
        stage: "test",
        by: test("tools", "modules::"),
    },
    Plant {
        name: "setting of a recipe",
        file: "host/src/recipe/methods.rs",
        find: "qsgd:bits=8,bucket=whole,l2",
        replace: "qsgd:bits=8,bucket=whole,l3",
        stage: "test",
        by: test("ranks", "methods::"),
    },
    Plant {
        name: "bit of the wire's header",
        file: "host/src/wire/header.rs",
        find: "out[18] = self.dtype.tag();",
        replace: "out[18] = self.dtype.tag() ^ 1;",
        stage: "test",
        by: test("cpu", "vectors::"),
    },
    Plant {
        name: "one level too many",
        file: "kernels-gpu/src/arith/qsgd.rs",
        find: "top / levels as f32",
        replace: "top / (levels + 1) as f32",
        stage: "test",
        by: of("qsgd", "cpu", "suite::"),
    },
    Plant {
        name: "sum without the last rank",
        file: "collectives/src/threads.rs",
        find: "add(&parts, sums);",
        replace: "add(&parts[..parts.len() - 1], sums);",
        stage: "test",
        by: test("ranks", "threads::"),
    },
    Plant {
        name: "barrier of a PTX text",
        file: "ptx/qsgd/sm_90.ptx",
        find: "bar.sync 0;\nand.b32 %r27, %r25, 31;",
        replace: "and.b32 %r27, %r25, 31;",
        stage: "test",
        by: of("qsgd", "gpu", "ptx::sm_90"),
    },
    Plant {
        name: "constant of a PTX text",
        file: "ptx/natural/sm_80.ptx",
        find: "and.b32 %r1226, %r1225, 8388608;",
        replace: "and.b32 %r1226, %r1225, 4194304;",
        stage: "test",
        by: of("natural", "gpu", "ptx::sm_80"),
    },
    Plant {
        name: "error of a driver, swallowed",
        file: "host/src/backend/cuda/session.rs",
        find: "self.driver.launch_dependent(function.id, launch.groups, THREADS, &args, stream)",
        replace: "self.driver.launch_dependent(function.id, launch.groups, THREADS, &args, stream).or(Ok(()))",
        stage: "test",
        by: test("gpu", "overlap::"),
    },
    Plant {
        name: "constant of a shader",
        file: "shaders/src/codecs/qsgd.wgsl",
        find: "const UP: u32 = 0x5f800000u;",
        replace: "const UP: u32 = 0x5f000000u;",
        stage: "test",
        by: of("qsgd", "wgpu", "suite::"),
    },
    Plant {
        name: "barrier of a shader",
        file: "shaders/src/bucketed/measure.wgsl",
        find: "clear(thread);\n    workgroupBarrier();",
        replace: "clear(thread);",
        stage: "test",
        by: of("qsgd", "wgpu", "suite::"),
    },
];

/// Plants each fault, or those whose names hold one of the words, and runs what must find it.
///
/// # Errors
/// Where one is not found.
pub(super) fn run(root: &Path, words: &[String]) -> Result<(), String> {
    let chosen = |plant: &&Plant| words.is_empty() || words.iter().any(|word| plant.name.contains(word.as_str()));
    let (tree, mut table, mut lost) = (copy(root)?, String::new(), 0);
    for plant in PLANTS.iter().filter(chosen) {
        println!("=== {}: {}", plant.name, plant.file);
        let start = Instant::now();
        let found = plant.found(&tree);
        let (word, by) = match &found {
            Ok(by) => ("found", by),
            Err(why) => ("LOST", why),
        };
        lost += usize::from(found.is_err());
        // A String takes all that is written to it.
        let _ = writeln!(table, "{:29} {word:5} {:5} {:>4}  {by}", plant.name, plant.stage, start.elapsed().as_secs());
        println!("=== {word}: {by}");
    }
    print!("\n{:29} {:5} {:5} {:>4}  by\n{table}", "fault", "", "stage", "s");
    if lost == 0 { Ok(()) } else { Err(format!("{lost} faults were not found; the table says which")) }
}

/// A copy of the last commit, in a folder that stays, with its build outputs, for the next time.
fn copy(root: &Path) -> Result<PathBuf, String> {
    let tree = root.join("target/plant/tree");
    if git(root, &["status", "--porcelain"])?.lines().next().is_some() {
        println!("what is not committed is not in the copy that faults are planted in");
    }
    let commit = git(root, &["rev-parse", "HEAD"])?.trim().to_owned();
    if !tree.join(".git").exists() {
        let (from, to) = (root.to_string_lossy().into_owned(), tree.to_string_lossy().into_owned());
        git(root, &["clone", "--quiet", "--shared", "--no-checkout", &from, &to])?;
    }
    git(&tree, &["fetch", "--quiet", "origin", "HEAD"])?;
    git(&tree, &["checkout", "--quiet", "--force", "--detach", &commit])?;
    Ok(tree)
}

#[cfg(test)]
mod tests {
    use super::super::stages::STAGES;
    use super::*;

    #[test]
    fn each_fault_can_be_planted_once() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        for plant in PLANTS {
            let text = std::fs::read_to_string(root.join(plant.file)).unwrap();
            assert_ne!(plant.planted(&text).unwrap(), text, "{}", plant.name);
            assert!(STAGES.iter().any(|stage| stage.name == plant.stage), "{} is no stage", plant.stage);
        }
    }
}
