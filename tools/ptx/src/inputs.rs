//! What the PTX is made of, as one hash: it tells in a second that the artifacts are not those of the sources.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use gradwire_tools::nightly::COMMIT_HASH;
use gradwire_tools::repository::hash;

use super::build::TARGETS;

/// Folders and files of Rust whose code ends up in the PTX, or decides what of it is kept and where.
const CODE: [&str; 6] = [
    "kernels-gpu/src",
    "ptx/src",
    "tools/common/src/nightly.rs",
    "tools/ptx/src/build.rs",
    "tools/ptx/src/split.rs",
    "tools/ptx/src/text.rs",
];
/// Tables of manifests that say how the kernels are built.
const TABLES: [(&str, &str); 4] = [
    ("Cargo.toml", "[profile.release]"),
    ("Cargo.toml", "[profile.ptx]"),
    ("Cargo.toml", "[workspace.package]"),
    ("kernels-gpu/Cargo.toml", "[dependencies]"),
];
/// The one dependency of the kernels as they are built for the PTX.
const DEPENDENCY: &str = "bytemuck";

/// The hash of everything that the artifacts depend on: code, manifests, dependencies, compiler, flags and targets.
/// Comments, empty lines and unit tests do not count.
pub(super) fn digest(root: &Path) -> Result<String, String> {
    let mut text = format!("compiler {COMMIT_HASH}\n");
    for target in TARGETS {
        text.push_str(&format!("target {}\n", target.described()));
    }
    let read = |name: &str| {
        let path = root.join(name);
        fs::read_to_string(&path).map_err(|e| format!("{} cannot be read: {e}", path.display()))
    };
    let mut files = BTreeSet::new();
    for place in CODE {
        rust(root, place, &mut files)?;
    }
    for name in &files {
        text.push_str(&format!("code {name}\n{}", code(&read(name)?)));
    }
    for (file, head) in TABLES {
        text.push_str(&format!(
            "table {file}\n{}",
            table(&read(file)?, head).ok_or_else(|| format!("{file} has no table {head}"))?
        ));
    }
    let requirement = format!("{DEPENDENCY} = ");
    let manifest = read("Cargo.toml")?;
    let requirement = manifest.lines().find(|line| line.starts_with(&requirement));
    text.push_str(requirement.ok_or_else(|| format!("Cargo.toml has no line for {DEPENDENCY}"))?);
    text.push('\n');
    text.push_str(&locked(&read("Cargo.lock")?, DEPENDENCY)?);
    hash(&text)
}

/// The names of the Rust files at or under a place.
fn rust(root: &Path, place: &str, names: &mut BTreeSet<String>) -> Result<(), String> {
    let path = root.join(place);
    let told = |e: std::io::Error| format!("{} cannot be read: {e}", path.display());
    if path.is_file() {
        names.extend(place.ends_with(".rs").then(|| place.to_owned()));
        return Ok(());
    }
    for entry in fs::read_dir(&path).map_err(told)? {
        let name = entry.map_err(told)?.file_name();
        rust(root, &format!("{place}/{}", name.to_string_lossy()), names)?;
    }
    Ok(())
}

/// A file's lines without comments, empty ones, and the unit tests at its end.
fn code(text: &str) -> String {
    let end = text.find("\n#[cfg(test)]\nmod tests {").unwrap_or(text.len());
    let lines = text[..end].lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("//"));
    lines.map(|line| format!("{line}\n")).collect()
}

/// The lines of a manifest's table that say something.
fn table(manifest: &str, head: &str) -> Option<String> {
    let mut lines = manifest.lines().skip_while(|line| *line != head);
    let head = lines.next()?;
    let body =
        lines.take_while(|line| !line.starts_with('[')).filter(|line| !line.is_empty() && !line.starts_with('#'));
    Some(std::iter::once(head).chain(body).map(|line| format!("{line}\n")).collect())
}

/// The versions and checksums of a package, and of all that it needs.
fn locked(lock: &str, package: &str) -> Result<String, String> {
    let entries: Vec<&str> = lock.split("[[package]]").skip(1).collect();
    let name = |entry: &str| {
        entry.lines().find_map(|line| line.strip_prefix("name = ")).map(|n| n.trim_matches('"').to_owned())
    };
    let (mut wanted, mut seen, mut text) = (vec![package.to_owned()], BTreeSet::new(), String::new());
    while let Some(next) = wanted.pop() {
        if !seen.insert(next.clone()) {
            continue;
        }
        // If there are several versions, all of them count.
        let found: Vec<&&str> = entries.iter().filter(|entry| name(entry).as_ref() == Some(&next)).collect();
        if found.is_empty() {
            return Err(format!("Cargo.lock has no package {next}, which the kernels need"));
        }
        for entry in found {
            text.push_str(entry.trim());
            text.push('\n');
            let needs = entry.lines().filter_map(|line| line.strip_prefix(" \"")?.split(['"', ' ']).next());
            wanted.extend(needs.map(str::to_owned));
        }
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digest_is_of_what_the_ptx_depends_on() {
        let of = |root: &Path| digest(root).unwrap();
        let folder = std::env::temp_dir().join(format!("gradwire-inputs-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        let write = |name: &str, text: &str| {
            let path = folder.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let kernel = "fn a() {\n    b();\n}\n";
        write("kernels-gpu/src/lib.rs", kernel);
        for file in &CODE[1..] {
            write(if file.ends_with(".rs") { file } else { "ptx/src/lib.rs" }, "");
        }
        write("kernels-gpu/Cargo.toml", "[dependencies]\nbytemuck.workspace = true\n");
        let manifest = "[workspace.package]\n[profile.release]\ndebug = false\n\n[profile.ptx]\nlto = \"fat\"\n";
        write("Cargo.toml", &format!("bytemuck = \"1\"\n{manifest}"));
        let package = |name: &str, version: u32, needs: &str| {
            format!("[[package]]\nname = \"{name}\"\nversion = \"{version}\"\ndependencies = [\n{needs}]\n\n")
        };
        let lock = |derive: u32, other: u32| {
            let needs = " \"derive 1.0\",\n";
            [package("bytemuck", 1, needs), package("derive", derive, ""), package("wgpu", other, "")].concat()
        };
        write("Cargo.lock", &lock(1, 1));
        let before = of(&folder);
        let same = |why: &str| assert_eq!(of(&folder), before, "{why}");
        write(
            "kernels-gpu/src/lib.rs",
            "//! Words.\n\nfn a() {\n    // Words.\n    b();\n}\n\n#[cfg(test)]\nmod tests {\n    c();\n}\n",
        );
        same("comments and tests");
        write("Cargo.lock", &lock(1, 2));
        same("a package that the kernels do not need");
        write("Cargo.toml", &format!("bytemuck = \"1\"\n{manifest}# Words.\n[profile.try]\ndebug = true\n"));
        same("another profile");
        let other = |why: &str| assert_ne!(of(&folder), before, "{why}");
        write("Cargo.lock", &lock(2, 2));
        other("a package that one of them needs");
        write("Cargo.lock", &lock(1, 2));
        write("Cargo.toml", &format!("bytemuck = \"1\"\n{}", manifest.replace("fat", "thin")));
        other("the profile");
        write("Cargo.toml", &format!("bytemuck = \"1\"\n{manifest}"));
        same("all is as before");
        write("kernels-gpu/src/new.rs", "fn c() {}\n");
        other("a file is new");
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn what_is_missing_is_named() {
        assert_eq!(table("[a]\nb = 1\n[c]\n", "[a]").as_deref(), Some("[a]\nb = 1\n"));
        assert_eq!(table("[a]\n", "[b]"), None);
        assert!(locked("", "bytemuck").is_err_and(|why| why.contains("no package bytemuck")));
        assert!(digest(Path::new("/nowhere")).is_err_and(|why| why.contains("/nowhere/kernels-gpu/src")));
    }
}
