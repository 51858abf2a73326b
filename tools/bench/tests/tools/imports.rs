//! No two files of a crate import each other, however long the way round; and no two entries of a folder do, each taken
//! with all that is in it. A folder's own file, `mod.rs`, is one of its entries.
//!
//! A file is known by its module's path. A `mod` line is no import. What a module passes on with `pub use` counts as an
//! import of the file that has it, so that a module which gathers names makes no circle by itself.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

type Module = Vec<String>;

/// The sources that have no circle.
const CRATES: [&str; 18] = [
    "collectives/src",
    "fuzz/src",
    "host/src",
    "kernels-gpu/src",
    "planner/src",
    "python/src",
    "tests/cuda-stand-in/src",
    "tests/nccl-stand-in/src",
    "tests/ptx-machine/src",
    "tools/bench/src",
    "tools/common/src",
    "tools/faults/src",
    "tools/ptx/src",
    "tools/radv/src",
    "tools/sass/src",
    "tools/study/src",
    "tools/web/src",
    "xtask/src",
];

#[test]
fn no_files_import_each_other_in_a_circle() {
    for folder in CRATES {
        let circle = circle(&imports(&of_crate(folder)));
        assert!(circle.is_none(), "{folder}: {}", circle.unwrap_or_default());
    }
}

#[test]
fn no_folders_import_each_other_in_a_circle() {
    for folder in CRATES {
        let circle = circle_of_entries(&imports(&of_crate(folder)));
        assert!(circle.is_none(), "{folder}: {}", circle.unwrap_or_default());
    }
}

/// A module by its path.
fn at(path: &str) -> Module {
    path.split("::").filter(|part| !part.is_empty()).map(str::to_owned).collect()
}

/// The marks that a merge leaves where it could not decide.
#[test]
fn no_text_has_marks_of_a_merge() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let listed = std::process::Command::new("git").args(["ls-files", "-z"]).current_dir(&root).output();
    let listed = listed.expect("git is there").stdout;
    let files: Vec<&str> = std::str::from_utf8(&listed).expect("names").split_terminator('\0').collect();
    assert!(files.len() > 500, "{} files", files.len());
    for file in files {
        // A file that was deleted and is not committed yet.
        let Ok(bytes) = std::fs::read(root.join(file)) else { continue };
        let text = String::from_utf8_lossy(&bytes);
        let mark = |line: &str| ["<<<<<<<", ">>>>>>>", "|||||||"].iter().any(|mark| line.starts_with(mark));
        assert!(!text.lines().any(mark), "{file} has marks of a merge");
    }
}

#[test]
fn a_planted_circle_is_found() {
    let file = |text: &str| text.to_owned();
    let mut files: BTreeMap<Module, String> = [
        (at(""), file("mod a;\nmod b;\nmod c;\npub use a::A;")),
        (at("a"), file("mod child;\nuse crate::b::{B, other::{self, C}};\npub use child::D;")),
        (at("a::child"), file("use crate::c::C;\npub(in crate::a) fn f() {}")),
        (at("b"), file("use crate::c;")),
        (at("c"), file("fn f() {}")),
    ]
    .into();
    assert_eq!(circle(&imports(&files)), None, "a module passes on its child's name, and declares it");
    files.insert(at("c"), file("fn f(d: crate::a::D) {}"));
    assert!(circle(&imports(&files)).is_some(), "by a path, through what a module passes on");
    files.insert(at("c"), file("pub(crate) use crate::b::B as X;"));
    assert!(circle(&imports(&files)).is_some(), "by an import");
    files.insert(at("c"), file("fn f() {}"));
    files.insert(at("a::child"), file("use super::A;"));
    assert_eq!(circle(&imports(&files)).as_deref(), Some("a -> a::child -> a"), "a child and its parent");
}

#[test]
fn a_planted_circle_of_folders_is_found() {
    let mut files: BTreeMap<Module, String> = [
        (Module::new(), "mod a;\nmod b;".to_owned()),
        (at("a"), "mod deep;\nmod x;\npub use x::X;".to_owned()),
        (at("a::x"), "pub struct X;".to_owned()),
        (at("a::deep"), "mod y;".to_owned()),
        (at("a::deep::y"), "use crate::b::Z;\nuse crate::a::X;".to_owned()),
        (at("b"), "pub struct Z;".to_owned()),
    ]
    .into();
    assert_eq!(circle_of_entries(&imports(&files)), None, "a imports b, and a::deep imports a::x");
    // No two files import each other, but the folders do.
    files.insert(at("b"), "use crate::a::X;\npub struct Z;".to_owned());
    assert_eq!(circle(&imports(&files)), None);
    assert_eq!(circle_of_entries(&imports(&files)).as_deref(), Some("a -> b -> a"));
    files.insert(at("b"), "pub struct Z;".to_owned());
    files.insert(at("a::deep::w"), "pub struct W;".to_owned());
    files.insert(at("a::x"), "use super::deep::w::W;\npub struct X;".to_owned());
    assert_eq!(circle_of_entries(&imports(&files)).as_deref(), Some("a::x -> a::deep -> a::x"), "within a folder");
}

/// The sources of a crate.
fn of_crate(folder: &str) -> BTreeMap<Module, String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(folder);
    let mut files = BTreeMap::new();
    collect(&root, &mut Vec::new(), &mut files);
    assert!(files.len() > 1, "{folder} has {} files", files.len());
    files
}

/// Reads the sources, without comments and tests.
fn collect(folder: &Path, module: &mut Module, files: &mut BTreeMap<Module, String>) {
    for entry in std::fs::read_dir(folder).expect("a folder of sources").map(|entry| entry.expect("an entry").path()) {
        let stem = entry.file_stem().and_then(|s| s.to_str()).expect("a name").to_owned();
        if entry.is_dir() {
            module.push(stem);
            collect(&entry, module, files);
            module.pop();
        } else if entry.extension().is_some_and(|e| e == "rs") {
            let text = std::fs::read_to_string(&entry).expect("a source");
            let own = if ["mod", "lib", "main"].contains(&stem.as_str()) { None } else { Some(stem) };
            let code: Vec<&str> = text.lines().map(|l| l.split("//").next().unwrap_or_default()).collect();
            let code = code.join("\n");
            let code = without_tests(&code).to_owned();
            files.insert(module.iter().cloned().chain(own).collect(), code);
        }
    }
}

/// The code before its module of tests, which other modules of tests may see.
fn without_tests(code: &str) -> &str {
    const TEST: &str = "#[cfg(test)]\n";
    let is_module = |at: &usize| {
        let item = &code[at + TEST.len()..];
        let item = if item.starts_with("pub(") { item.split_once(") ").map_or(item, |(_, item)| item) } else { item };
        item.starts_with("mod ")
    };
    code.match_indices(TEST).map(|(at, _)| at).find(is_module).map_or(code, |at| &code[..at])
}

/// The paths that a file names: by `use`, each with whether it is passed on, and within its code.
fn paths(code: &str) -> Vec<(Vec<String>, bool)> {
    let code = &without_visibility(code);
    let (mut found, mut rest) = (Vec::new(), String::new());
    let mut from = 0;
    for (at, _) in code.match_indices("use ") {
        let line = code[..at].rfind('\n').map_or(0, |i| i + 1);
        let before = code[line..at].trim();
        if at < from || !(before.is_empty() || before == "pub" || (before.starts_with("pub(") && before.ends_with(')')))
        {
            continue;
        }
        let end = code[at..].find(';').map_or(code.len(), |i| at + i);
        rest.push_str(&code[from..at]);
        expand(&mut Vec::new(), &code[at + 4..end], &mut |path| found.push((path, !before.is_empty())));
        from = end;
    }
    rest.push_str(&code[from..]);
    for start in ["crate::", "super::", "self::"] {
        for (at, _) in rest.match_indices(start) {
            let of_word = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
            let end = rest[at..].find(|c| !of_word(c)).map_or(rest.len(), |i| at + i);
            // What a macro's variable names after `::` is in the macro's table.
            if !rest[..at].ends_with(of_word) && !rest[at..end].ends_with("::") {
                found.push((rest[at..end].split("::").filter(|p| !p.is_empty()).map(str::to_owned).collect(), false));
            }
        }
    }
    found
}

/// The same code with `pub` for each `pub(in path)`, which names a module and imports nothing.
fn without_visibility(code: &str) -> String {
    let mut parts = code.split("pub(in ");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |all, part| all + "pub" + part.split_once(')').map_or("", |(_, rest)| rest))
}

/// The paths of a `use` tree.
fn expand(prefix: &mut Vec<String>, tree: &str, found: &mut impl FnMut(Vec<String>)) {
    let tree = tree.trim();
    let Some(open) = tree.find('{') else {
        let name = tree.split(" as ").next().unwrap_or_default();
        let parts = name.split("::").map(str::trim).filter(|p| !p.is_empty() && *p != "self" || prefix.is_empty());
        found(prefix.iter().cloned().chain(parts.map(str::to_owned)).collect());
        return;
    };
    let depth = prefix.len();
    prefix.extend(tree[..open].split("::").map(str::trim).filter(|p| !p.is_empty()).map(str::to_owned));
    let (mut level, mut start) = (0, open + 1);
    for (at, c) in tree.char_indices().skip_while(|(at, _)| *at <= open) {
        match c {
            '{' => level += 1,
            '}' if level > 0 => level -= 1,
            ',' | '}' if level == 0 => {
                if !tree[start..at].trim().is_empty() {
                    expand(prefix, &tree[start..at], found);
                }
                start = at + 1;
            }
            _ => {}
        }
    }
    prefix.truncate(depth);
}

/// A path from the crate's root on.
fn absolute(files: &BTreeMap<Module, String>, module: &Module, path: &[String]) -> Option<Module> {
    let (first, rest) = path.split_first()?;
    match first.as_str() {
        "crate" => Some(rest.to_vec()),
        "self" => Some([module, rest].concat()),
        "super" => {
            let up = path.iter().take_while(|p| *p == "super").count();
            Some([&module[..module.len().checked_sub(up)?], &path[up..]].concat())
        }
        _ => {
            let child = [&module[..], std::slice::from_ref(first)].concat();
            files.contains_key(&child).then(|| [module, path].concat())
        }
    }
}

/// What each file imports of the others.
fn imports(files: &BTreeMap<Module, String>) -> BTreeMap<Module, BTreeSet<Module>> {
    let named: BTreeMap<&Module, Vec<(Vec<String>, bool)>> = files.iter().map(|(m, code)| (m, paths(code))).collect();
    let mut passed_on = BTreeMap::new();
    for (module, paths) in &named {
        for path in paths.iter().filter(|(_, passed)| *passed).filter_map(|(path, _)| absolute(files, module, path)) {
            if let Some(name) = path.last() {
                passed_on.insert([&module[..], std::slice::from_ref(name)].concat(), path);
            }
        }
    }
    let home = |mut path: Module| -> Option<Module> {
        for _ in 0..8 {
            let known = (0..=path.len()).rev().find(|len| files.contains_key(&path[..*len]))?;
            match path.get(..known + 1).and_then(|name| passed_on.get(name)) {
                Some(further) if further[..] != path[..known + 1] => path = further.clone(),
                _ => return Some(path[..known].to_vec()),
            }
        }
        None
    };
    let of = |(module, paths): (&&Module, &Vec<(Vec<String>, bool)>)| {
        let homes = paths.iter().filter_map(|(path, _)| absolute(files, module, path)).filter_map(home);
        ((*module).clone(), homes.filter(|to| to != *module).collect())
    };
    named.iter().map(of).collect()
}

/// A way from an entry of a folder back to itself, of any folder; an entry is a file, or a folder with all in it.
fn circle_of_entries(imports: &BTreeMap<Module, BTreeSet<Module>>) -> Option<String> {
    let folders: BTreeSet<&[String]> = imports.keys().flat_map(|m| (0..m.len()).map(|end| &m[..end])).collect();
    folders.into_iter().find_map(|folder| {
        // The folder's own file is the entry of the folder's name.
        let entry = |m: &Module| m.starts_with(folder).then(|| m[..m.len().min(folder.len() + 1)].to_vec());
        let mut between: BTreeMap<Module, BTreeSet<Module>> = BTreeMap::new();
        for (from, all) in imports {
            let Some(from) = entry(from) else { continue };
            let others = all.iter().filter_map(entry).filter(|to| *to != from).collect::<Vec<_>>();
            between.entry(from).or_default().extend(others);
        }
        circle(&between)
    })
}

/// A way from a file back to itself.
fn circle(imports: &BTreeMap<Module, BTreeSet<Module>>) -> Option<String> {
    // What imports nothing that is left is in no circle.
    let mut left: BTreeSet<&Module> = imports.keys().collect();
    while let Some(leaf) = left.iter().copied().find(|m| imports[*m].iter().all(|to| !left.contains(to))) {
        left.remove(leaf);
    }
    let mut at = *left.first()?;
    let mut way = Vec::new();
    while !way.contains(&at) {
        way.push(at);
        at = imports[at].iter().find(|to| left.contains(to))?;
    }
    let way = way.into_iter().skip_while(|module| *module != at);
    let names: Vec<String> = way.chain([at]).map(|m| m.join("::")).collect();
    Some(names.join(" -> "))
}
