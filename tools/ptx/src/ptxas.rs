//! NVIDIA's assembler, if there is one: it alone knows whether a text is valid, and what registers it takes.

use std::collections::BTreeSet;
use std::collections::btree_map::{BTreeMap, Entry};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use gradwire::plan::Kernel;
use gradwire_ptx::{FAMILIES, HEAD_LINES, family_of};
use gradwire_tests::Depth;
use gradwire_tools::checkout::root;
use gradwire_tools::repository::hash;
use gradwire_tools::side_by_side::side_by_side;

use super::assembled::{self, Assembled};
use super::build::{TARGETS, Target};

/// An assembler.
pub struct Ptxas {
    /// Where it is.
    pub path: PathBuf,
    /// Its release, `12.9`.
    pub release: String,
    /// Its version in full, `12.9.86`.
    full: String,
    /// The capabilities that it assembles for.
    pub knows: BTreeSet<u32>,
}

impl Ptxas {
    /// The release as numbers, by which it is older or newer than another.
    #[must_use]
    pub fn version(&self) -> Vec<u32> {
        version(&self.release)
    }
}

/// One artifact of one family, assembled for one capability by one assembler.
struct Job<'a> {
    family: &'static str,
    target: u32,
    sm: u32,
    by: &'a Ptxas,
}

/// One capability of each generation, and of those that hold fewer threads than the first of theirs. The other ones
/// differ from one of these in nothing that a kernel uses.
const GENERATIONS: [u32; 10] = [35, 50, 60, 70, 75, 80, 86, 90, 100, 120];

/// Assembles for each capability what a device of it is given first; and, with the newest assembler that knows it, what
/// it is given where its driver refuses that. Below the full depth these are the capabilities of [`GENERATIONS`], and
/// the oldest and the newest assembler that know each. Fails where one is refused, has a stack frame or spills
/// registers; prints the registers of each kernel, and what was not checked.
///
/// Below the full depth, what the committed list has is passed over. `accept` writes the list anew.
pub(super) fn assemble(artifacts: &Path, depth: Depth, accept: bool) -> Result<(), String> {
    let all = find();
    if accept && all.is_empty() {
        return Err(format!(
            "{} is made with ptxas, and none was found; `.ci/install ptxas` unpacks three",
            assembled::LIST
        ));
    }
    let mut jobs = Vec::new();
    for family in &FAMILIES {
        jobs.extend(of_family(family.name, &all, &instructions(&artifacts.join(family.name))?, depth));
    }
    let lines = lines(&jobs, artifacts)?;
    let list = Assembled::read(&root());
    let taken = |line: &String| !depth.sweeps() && list.has(line);
    let open = jobs.into_iter().zip(&lines).filter(|(_, line)| !taken(line)).map(|(job, _)| job);
    let numbered: Vec<(usize, Job<'_>)> = open.enumerate().collect();
    println!("{} of {} texts are assembled; {} has the others", numbered.len(), lines.len(), assembled::LIST);
    let rows = side_by_side(&numbered, || (), |(), (index, job)| run(job, artifacts, *index));

    let (mut failures, mut family) = (Vec::new(), "");
    if !numbered.is_empty() {
        println!("registers of each kernel:");
    }
    for ((_, job), result) in numbered.iter().zip(rows) {
        if family != job.family {
            family = job.family;
            println!("{family}:\n{:9} {:7} {:9} {}", "artifact", "for", "ptxas", columns(family));
        }
        match result {
            Ok(row) => println!("sm_{:<6} sm_{:<4} {:9} {row}", job.target, job.sm, job.by.release),
            Err(why) => {
                let by = job.by.path.display();
                failures.push(format!("{family}/sm_{}.ptx for sm_{} with {by}: {why}", job.target, job.sm));
            }
        }
    }
    for target in TARGETS {
        if !all.iter().any(|ptxas| ptxas.knows.contains(&target.sm)) {
            println!("nothing was assembled for sm_{}: no ptxas that knows it was found", target.sm);
        }
    }
    if !depth.sweeps() && !numbered.is_empty() {
        println!(
            "one capability of each generation was assembled for; `--depth full` takes every one, with every ptxas"
        );
    }
    if !failures.is_empty() {
        return Err(failures.join("\n"));
    }
    if accept {
        return Assembled::write(&root(), lines.into_iter());
    }
    if !numbered.is_empty() && !depth.sweeps() {
        println!("the next check need not assemble these: `cargo xtask ptx --check --accept`, and commit the list");
    }
    Ok(())
}

/// The line of each job in the list.
fn lines(jobs: &[Job<'_>], artifacts: &Path) -> Result<Vec<String>, String> {
    let mut hashes: BTreeMap<(&str, u32), String> = BTreeMap::new();
    let mut lines = Vec::new();
    for job in jobs {
        let hash = match hashes.entry((job.family, job.target)) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => {
                let path = artifacts.join(format!("{}/sm_{}.ptx", job.family, job.target));
                let text = fs::read_to_string(&path).map_err(|e| format!("{} cannot be read: {e}", path.display()))?;
                new.insert(hash(&text)?)
            }
        };
        lines.push(assembled::line(job.family, job.target, hash, job.sm, &job.by.full));
    }
    Ok(lines)
}

/// Each target's instructions: its artifact without the head, which is what several may share.
fn instructions(artifacts: &Path) -> Result<Vec<String>, String> {
    let read = |target: &Target| {
        let path = artifacts.join(target.file());
        let text = fs::read_to_string(&path).map_err(|e| format!("{} cannot be read: {e}", path.display()))?;
        Ok(text.splitn(HEAD_LINES + 1, '\n').nth(HEAD_LINES).unwrap_or("").to_owned())
    };
    TARGETS.iter().map(read).collect()
}

/// What is assembled by what, for what: see [`assemble`]. Targets that share their instructions give an assembler the
/// same work, so that of these one is enough.
fn of_family<'a>(family: &'static str, all: &'a [Ptxas], instructions: &[String], depth: Depth) -> Vec<Job<'a>> {
    let mut jobs = Vec::new();
    for by in all {
        for &sm in &by.knows {
            let known = || all.iter().filter(|p| p.knows.contains(&sm)).map(Ptxas::version);
            let (oldest, newest) = (known().min() == Some(by.version()), known().max() == Some(by.version()));
            if !depth.sweeps() && !(GENERATIONS.contains(&sm) && (oldest || newest)) {
                continue;
            }
            let mut seen: Vec<&String> = Vec::new();
            for (target, text) in TARGETS.iter().zip(instructions).rev().filter(|(t, _)| t.sm <= sm) {
                if seen.is_empty() || (newest && !seen.contains(&text)) {
                    jobs.push(Job { family, target: target.sm, sm, by });
                }
                seen.push(text);
            }
        }
    }
    jobs
}

/// `12.9` as two numbers.
fn version(release: &str) -> Vec<u32> {
    release.split('.').filter_map(|part| part.parse().ok()).collect()
}

/// The names of a family's kernels.
fn kernels(family: &str) -> impl Iterator<Item = &'static str> {
    Kernel::ALL.into_iter().map(Kernel::name).filter(move |name| family_of(name).is_some_and(|f| f.name == family))
}

/// The names of a family's kernels, as the table's columns.
fn columns(family: &str) -> String {
    kernels(family).map(|kernel| format!("{kernel:>24}")).collect()
}

/// Every assembler that is found, one a release.
#[must_use]
pub fn find() -> Vec<Ptxas> {
    let mut paths: Vec<PathBuf> = Vec::new();
    match std::env::var_os("GRADWIRE_PTXAS") {
        // An empty list has one path, which is empty: it says that there is to be none.
        Some(list) => paths.extend(std::env::split_paths(&list).filter(|path| !path.as_os_str().is_empty())),
        None => {
            let path = std::env::var_os("PATH").unwrap_or_default();
            paths.extend(std::env::split_paths(&path).map(|folder| folder.join("ptxas")).filter(|p| p.is_file()));
            search(&root().join("target/ptxas"), "bin/ptxas", 8, &mut paths);
        }
    }
    let mut found: Vec<Ptxas> = Vec::new();
    for path in paths {
        match ask(&path) {
            Some(ptxas) if found.iter().all(|other| other.release != ptxas.release) => found.push(ptxas),
            Some(_) => {}
            None => println!("{} does not answer as a ptxas does, and is left out", path.display()),
        }
    }
    found
}

/// The files under a folder whose paths end so.
pub fn search(folder: &Path, end: &str, depth: u32, paths: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    let mut entries: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    entries.sort();
    for path in entries {
        if path.is_dir() && depth > 0 {
            search(&path, end, depth - 1, paths);
        } else if path.ends_with(end) {
            paths.push(path);
        }
    }
}

/// What an assembler says of itself.
fn ask(path: &Path) -> Option<Ptxas> {
    let say = |flag: &str| {
        let output = Command::new(path).arg(flag).output().ok()?;
        Some(String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let version = say("--version")?;
    let release = version.split("release ").nth(1)?.split(',').next()?.to_owned();
    let full = version.split(", V").nth(1)?.split_whitespace().next()?.to_owned();
    let help = say("--help")?;
    // `'sm_90'`, but not `'sm_90a'`: what is written for one capability and its family is not what is shipped.
    let knows: BTreeSet<u32> =
        help.split("'sm_").skip(1).filter_map(|rest| rest.split('\'').next()?.parse().ok()).collect();
    (!knows.is_empty()).then(|| Ptxas { path: path.to_owned(), release, full, knows })
}

/// Assembles one artifact; gives the table's row.
fn run(job: &Job<'_>, artifacts: &Path, index: usize) -> Result<String, String> {
    let out = root().join(format!("target/ptx/{index}.cubin"));
    let output = Command::new(&job.by.path)
        .arg("-v")
        .arg(format!("-arch=sm_{}", job.sm))
        .arg(artifacts.join(format!("{}/sm_{}.ptx", job.family, job.target)))
        .arg("-o")
        .arg(&out)
        .output()
        .map_err(|e| format!("it could not be started: {e}"))?;
    let _ = fs::remove_file(&out);
    let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    if !output.status.success() {
        return Err(text);
    }
    row(job.family, &text)
}

/// Reads the registers of each kernel from what `ptxas -v` says, and fails on local memory.
fn row(family: &str, text: &str) -> Result<String, String> {
    let (mut name, mut registers) = ("", Vec::new());
    for line in text.lines() {
        if let Some(rest) = line.split("Compiling entry function '").nth(1) {
            name = rest.split('\'').next().unwrap_or("");
        } else if line.contains("bytes stack frame") && line.split(',').any(|part| !part.trim().starts_with("0 bytes"))
        {
            return Err(format!("{name} does not fit the registers: {}", line.trim()));
        } else if let Some(rest) = line.split("Used ").nth(1) {
            registers.push((name, rest.split(' ').next().unwrap_or("?")));
        }
    }
    let of = |kernel: &str| registers.iter().find(|(name, _)| *name == kernel).map(|(_, count)| *count);
    let columns: Option<Vec<_>> = kernels(family).map(|kernel| Some(format!("{:>24}", of(kernel)?))).collect();
    columns.map(|c| c.concat()).ok_or_else(|| format!("its report lacks a kernel:\n{text}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(frame: &str) -> String {
        kernels("topk")
            .enumerate()
            .map(|(i, name)| {
                format!(
                    "ptxas info    : Compiling entry function '{name}' for 'sm_70'\n\
                     ptxas info    : Function properties for {name}\n    {frame}\n\
                     ptxas info    : Used {} registers, used 1 barriers, 192 bytes smem\n",
                    30 + i
                )
            })
            .collect()
    }

    /// By which assembler what is assembled, as (release, capability, artifacts).
    fn plan(all: &[Ptxas], depth: Depth) -> Vec<(&str, u32, Vec<u32>)> {
        let texts = ["old", "old", "old", "newer", "newest"].map(str::to_owned);
        let mut plan: Vec<(&str, u32, Vec<u32>)> = Vec::new();
        for job in of_family("topk", all, &texts, depth) {
            match plan.iter_mut().find(|(release, sm, _)| (*release, *sm) == (&job.by.release, job.sm)) {
                Some((_, _, targets)) => targets.push(job.target),
                None => plan.push((&job.by.release, job.sm, vec![job.target])),
            }
        }
        plan
    }

    #[test]
    fn every_capability_has_its_first_artifact_and_each_text() {
        let ptxas = |release: &str, knows: &[u32]| Ptxas {
            path: PathBuf::from(release),
            release: release.to_owned(),
            full: String::new(),
            knows: knows.iter().copied().collect(),
        };
        let all = [ptxas("9.2", &[35, 61, 90]), ptxas("12.9", &[61, 90, 120]), ptxas("12.10", &[90, 120])];
        let full = [
            ("9.2", 35, vec![35]),
            ("9.2", 61, vec![60]),
            ("9.2", 90, vec![90]),
            ("12.9", 61, vec![60]),
            ("12.9", 90, vec![90]),
            ("12.9", 120, vec![90]),
            ("12.10", 90, vec![90, 80, 70]),
            ("12.10", 120, vec![90, 80, 70]),
        ];
        assert_eq!(plan(&all, Depth::Full), full);
        // No sm_61, whose generation is sm_60's; for sm_90 neither the oldest nor the newest is left out.
        let shorter = [full[0].clone(), full[2].clone(), full[5].clone(), full[6].clone(), full[7].clone()];
        assert_eq!(plan(&all, Depth::Default), shorter);
    }

    #[test]
    fn registers_are_read_from_the_report() {
        let row = row("topk", &report("0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads"))
            .expect("no local memory");
        assert_eq!(
            row.split_whitespace().collect::<Vec<_>>(),
            (30..30 + kernels("topk").count()).map(|r| r.to_string()).collect::<Vec<_>>()
        );
    }

    #[test]
    fn local_memory_is_refused() {
        for frame in [
            "8 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads",
            "0 bytes stack frame, 4 bytes spill stores, 0 bytes spill loads",
            "0 bytes stack frame, 0 bytes spill stores, 16 bytes spill loads",
        ] {
            assert!(row("topk", &report(frame)).unwrap_err().contains("topk_sample"), "{frame}");
        }
        assert!(row("topk", "").is_err());
    }
}
