//! Runs tests as processes: each module of an integration program by itself, as many at once as there are cores.
//!
//! `cargo test` runs one program after the other, and waits for the longest test of each with all other cores idle. It
//! also runs all modules of a program in one process, where a crash ends all of them.

use std::process::{Command, Output};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use super::programs::{Program, Test, build};

/// Started before all others, so that none of them is still running when the rest has ended.
pub(super) const LONGEST: [&str; 15] = [
    "gradwire-sass",
    "gpu traffic",
    "gpu ptx",
    "gpu topk_gpu",
    "train",
    "cpu powersgd",
    "ranks resident_training",
    "ranks compressor",
    "gpu powersgd_gpu",
    "cpu dct",
    "cpu suite",
    "tools report",
    "cpu packing",
    "cpu wire_page",
    "cpu powersgd_faults",
];

/// Tests that one process runs.
struct Job<'p> {
    program: &'p Program,
    /// The program, and the module if it has one.
    name: String,
    tests: Vec<Test>,
}

/// The outcome of tests, as their program counts them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    passed: usize,
    failed: usize,
    ignored: usize,
}

/// Builds test programs, and runs their tests that are `wanted`: all of them even if some fail. `cargo` has all words
/// up to the choice of targets.
pub(crate) fn run(cargo: Command, environment: &[(&str, &str)], wanted: impl Fn(&Test) -> bool) -> Result<(), String> {
    let programs = build(cargo)?;
    let mut jobs = Vec::new();
    for program in &programs {
        jobs.extend(split(program, program.tests()?.into_iter().filter(&wanted)));
    }
    if jobs.is_empty() {
        return Err("no program lists any of the tests".to_owned());
    }
    jobs.sort_by_key(|job| LONGEST.iter().position(|name| *name == job.name).unwrap_or(LONGEST.len()));
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    println!("{} processes of {} programs, {cores} at once", jobs.len(), programs.len());
    let (left, done) = (Mutex::new(jobs.into_iter()), Mutex::new((Counts::default(), Vec::new())));
    let next = || left.lock().unwrap_or_else(PoisonError::into_inner).next();
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                while let Some(job) = next() {
                    let begun = Instant::now();
                    let outcome = job.run(environment);
                    let (seconds, tests) = (begun.elapsed().as_secs_f64(), job.tests.len());
                    let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
                    match outcome {
                        Ok(counts) => {
                            println!("{}: passed in {seconds:.1} s, {tests} tests", job.name);
                            done.0.add(counts);
                        }
                        Err((counts, why)) => {
                            println!("{}: FAILED after {seconds:.1} s\n{why}", job.name);
                            done.0.add(counts);
                            done.1.push(job.name);
                        }
                    }
                }
            });
        }
    });
    let (Counts { passed, failed, ignored }, names) = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    if ignored > 0 {
        println!("{ignored} ignored");
    }
    println!("{passed} passed, {failed} failed");
    if names.is_empty() { Ok(()) } else { Err(format!("{} failed; their output is above", names.join(", "))) }
}

/// A job for each module of a program, in the order of their first tests.
fn split(program: &Program, tests: impl Iterator<Item = Test>) -> Vec<Job<'_>> {
    let mut jobs: Vec<Job<'_>> = Vec::new();
    for test in tests {
        let name = format!("{} {}", program.name, test.module).trim_end().to_owned();
        match jobs.iter_mut().find(|job| job.name == name) {
            Some(job) => job.tests.push(test),
            None => jobs.push(Job { program, name, tests: vec![test] }),
        }
    }
    jobs
}

impl Job<'_> {
    /// One test at a time, since there is a process for each core. An error has the output of the program.
    fn run(&self, environment: &[(&str, &str)]) -> Result<Counts, (Counts, String)> {
        let nothing_passed = Counts { failed: self.tests.len(), ..Counts::default() };
        let Program { path, folder, .. } = self.program;
        let mut program = Command::new(path);
        program.current_dir(folder).env("CARGO_MANIFEST_DIR", folder).env("RUST_TEST_THREADS", "1");
        program.arg("--exact").args(self.tests.iter().map(Test::path)).envs(environment.iter().copied());
        let Output { status, stdout, stderr } =
            program.output().map_err(|e| (nothing_passed, format!("it could not be started: {e}")))?;
        let (stdout, stderr) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
        // A process that was killed prints no counts.
        let counts = Counts::read(&stdout);
        match counts {
            Some(counts) if status.success() && counts.sum() == self.tests.len() => Ok(counts),
            Some(counts) if status.success() => {
                let why = format!("it lists {} tests and ran {}", self.tests.len(), counts.sum());
                Err((Counts { failed: counts.failed.max(1), ..counts }, why))
            }
            _ => Err((counts.unwrap_or(nothing_passed), format!("{status}\n{stdout}{stderr}"))),
        }
    }
}

impl Counts {
    /// From the last line of a program: `test result: ok. 14 passed; 0 failed; 1 ignored; ...`.
    fn read(stdout: &str) -> Option<Self> {
        let line = stdout.lines().rev().find_map(|line| line.strip_prefix("test result: "))?;
        let of = |what: &str| line.split(['.', ';']).find_map(|part| part.trim().strip_suffix(what)?.parse().ok());
        Some(Self { passed: of(" passed")?, failed: of(" failed")?, ignored: of(" ignored")? })
    }

    fn sum(self) -> usize {
        self.passed + self.failed + self.ignored
    }

    fn add(&mut self, more: Self) {
        self.passed += more.passed;
        self.failed += more.failed;
        self.ignored += more.ignored;
    }
}

#[cfg(test)]
mod tests {
    use super::{Counts, Job, Program, Test, split};

    fn test(module: &str, name: &str) -> Test {
        Test { program: "p".to_owned(), module: module.to_owned(), name: name.to_owned() }
    }

    #[test]
    fn each_module_is_a_job() {
        let program = Program::at("/bin/true");
        let tests = [test("topk", "a"), test("topk_gpu", "a"), test("topk", "b::c"), test("", "d")];
        let jobs = split(&program, tests.into_iter());
        let found: Vec<_> = jobs.iter().map(|job| (job.name.as_str(), job.tests.len())).collect();
        assert_eq!(found, [("p topk", 2), ("p topk_gpu", 1), ("p", 1)]);
    }

    #[test]
    fn counts_are_read_from_the_last_line() {
        let output = "running 16 tests\n\ntest result: FAILED. 13 passed; 2 failed; 1 ignored; 0 measured; 9 filtered \
                      out; finished in 0.12s\n\n";
        let counts = Counts::read(output).expect("counts");
        assert_eq!(counts, Counts { passed: 13, failed: 2, ignored: 1 });
        assert_eq!(counts.sum(), 16);
        assert_eq!(Counts::read("running 16 tests\ntest a ... "), None);
    }

    #[test]
    fn the_output_of_a_program_that_fails_is_reported() {
        let failed = |path: &str| {
            let program = Program::at(path);
            let job = Job { program: &program, name: "p".to_owned(), tests: vec![test("", "a"), test("", "b")] };
            let (counts, why) = job.run(&[]).expect_err("it runs no tests");
            assert_eq!(counts, Counts { failed: 2, ..Counts::default() });
            why
        };
        assert!(failed("/bin/false").contains("exit status: 1"));
        assert!(failed("/bin/true").contains("exit status: 0"), "it printed no counts");
        assert!(failed("/nowhere/p").contains("could not be started"));
    }
}
