//! Stamps: for what state a stage was green last. Each is a small text file outside of the repository.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::state::{State, Tool};

/// The first line, which changes with the format.
const FORMAT: &str = "gradwire-ci 3";
/// The last line, so that a file that was cut off is known.
const END: &str = "end";

/// That a stage was green.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    /// For which state.
    pub(super) state: State,
    /// At which commit.
    pub(super) commit: String,
    /// How long it took.
    pub(super) seconds: u64,
    /// When that was, in seconds since 1970.
    pub(super) ran: u64,
}

/// A stage that passed.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// It was green.
    Stamp(Stamp),
    /// Nothing.
    Nothing,
    /// A file that says nothing that can be relied on, and why.
    Ignored(String),
}

/// The folder of the stamps.
///
/// # Errors
/// Where the environment names none.
pub(super) fn folder() -> Result<PathBuf, String> {
    let named = |variable: &str| std::env::var_os(variable).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = || named("XDG_CACHE_HOME").or_else(|| named("HOME").map(|home| home.join(".cache")));
    let folder = named("GRADWIRE_CI_STAMPS").or_else(|| cache().map(|cache| cache.join("gradwire-ci")));
    let folder = folder.ok_or(
        "there is no place for stamps and downloads: none of GRADWIRE_CI_STAMPS, XDG_CACHE_HOME and HOME is set; set the \
         first to a folder that is kept",
    )?;
    let told = |e: std::io::Error| format!("{} cannot be the folder of stamps: {e}", folder.display());
    fs::create_dir_all(&folder).map_err(told)?;
    folder.canonicalize().map_err(told)
}

fn path(folder: &Path, stage: &str) -> PathBuf {
    folder.join(format!("{stage}.stamp"))
}

/// The stamp of a stage.
pub(super) fn read(folder: &Path, stage: &str) -> Found {
    match fs::read_to_string(path(folder, stage)) {
        Ok(text) => parse(&text).map_or_else(Found::Ignored, Found::Stamp),
        Err(error) if error.kind() == ErrorKind::NotFound => Found::Nothing,
        Err(error) => Found::Ignored(error.to_string()),
    }
}

/// Keeps a stamp: all of it, or the one before it.
pub(super) fn write(folder: &Path, stage: &str, stamp: &Stamp) -> Result<(), String> {
    let path = path(folder, stage);
    // Another run may write the same stamp, so each writes a file of its own and renames it.
    let part = path.with_extension(format!("{}.part", std::process::id()));
    let written = fs::write(&part, text(stamp)).and_then(|()| fs::rename(&part, &path));
    written.map_err(|e| format!("{} could not be written: {e}", path.display()))
}

/// Forgets that a stage was green.
pub(super) fn remove(folder: &Path, stage: &str) -> Result<(), String> {
    let path = path(folder, stage);
    match fs::remove_file(&path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(format!("{} stays: {error}", path.display())),
        _ => Ok(()),
    }
}

fn text(stamp: &Stamp) -> String {
    let Stamp { state: State { files, declaration, settings, tools }, commit, seconds, ran } = stamp;
    let tools: String = tools.iter().map(|tool| format!("tool\t{}\t{}\n", tool.line, tool.says)).collect();
    format!(
        "{FORMAT}\nfiles\t{files}\ndeclaration\t{declaration}\nsettings\t{settings}\n{tools}commit\t{commit}\n\
         seconds\t{seconds}\nran\t{ran}\n{END}\n"
    )
}

fn parse(text: &str) -> Result<Stamp, String> {
    let first = text.lines().next().unwrap_or_default();
    if first != FORMAT {
        return Err(format!(
            "it begins with `{}`, and not with `{FORMAT}`",
            first.chars().take(40).collect::<String>()
        ));
    }
    let lines: Vec<&str> = text.lines().skip(1).collect();
    let damaged = |what: &str| format!("it is damaged: {what}");
    let Some((&END, lines)) = lines.split_last().filter(|_| text.ends_with('\n')) else {
        return Err(damaged("its end is missing"));
    };
    let value = |name: &str| {
        let mut found = lines.iter().filter_map(|line| line.strip_prefix(name)?.strip_prefix('\t'));
        let value = found.next().filter(|value| !value.is_empty() && found.next().is_none());
        value.map(str::to_owned).ok_or_else(|| damaged(&format!("it has no one line `{name}`")))
    };
    let tool = |line: &&str| {
        let (line, says) = line.strip_prefix("tool\t")?.split_once('\t')?;
        Some(Tool { line: line.to_owned(), says: says.to_owned() })
    };
    let state = State {
        files: value("files")?,
        declaration: value("declaration")?,
        settings: value("settings")?,
        tools: lines.iter().filter_map(tool).collect(),
    };
    let number = |name: &str| value(name)?.parse().map_err(|_| damaged(&format!("its {name} is no number")));
    Ok(Stamp { state, commit: value("commit")?, seconds: number("seconds")?, ran: number("ran")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamp() -> Stamp {
        let tool = |line: &str| Tool { line: line.to_owned(), says: "v1, of x".to_owned() };
        let state = State {
            files: "f".repeat(40),
            declaration: "d".repeat(40),
            settings: "e".repeat(40),
            tools: vec![tool("node --version"), tool("a || b")],
        };
        Stamp { state, commit: "0123".to_owned(), seconds: 7, ran: 1_800_000_000 }
    }

    #[test]
    fn a_stamp_is_kept() {
        let folder = std::env::temp_dir().join(format!("gradwire-stamp-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        assert_eq!(read(&folder, "one"), Found::Nothing);
        write(&folder, "one", &stamp()).unwrap();
        assert_eq!(read(&folder, "one"), Found::Stamp(stamp()));
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1, "nothing else is left there");
        remove(&folder, "one").unwrap();
        remove(&folder, "one").unwrap();
        assert_eq!(read(&folder, "one"), Found::Nothing);
        fs::create_dir(path(&folder, "one")).unwrap();
        assert!(matches!(read(&folder, "one"), Found::Ignored(_)), "no file, but something is there");
        assert!(write(&folder, "one", &stamp()).is_err_and(|why| why.contains("one.stamp could not be written")));
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_stamp_that_is_damaged_or_of_another_format_is_ignored() {
        let good = text(&stamp());
        assert_eq!(parse(&good), Ok(stamp()));
        for cut in 0..good.len() {
            assert!(parse(&good[..cut]).is_err(), "cut off at {cut}");
        }
        let newer = good.replacen("gradwire-ci 3", "gradwire-ci 4", 1);
        assert!(parse(&newer).is_err_and(|why| why.contains("begins with `gradwire-ci 4`")));
        for line in ["files", "declaration", "settings", "commit", "seconds", "ran"] {
            let without: String =
                good.lines().filter(|l| !l.starts_with(line)).map(|line| format!("{line}\n")).collect();
            assert!(parse(&without).is_err_and(|why| why.contains(&format!("`{line}`"))), "{line}");
        }
        assert!(parse(&good.replace("seconds\t7", "seconds\t-7")).is_err_and(|why| why.contains("no number")));
        // A tool that is lost is another state, and not the same one.
        let fewer = parse(&good.replacen("tool\t", "t\t", 1)).unwrap();
        assert!(stamp().state.differs(&fewer.state).is_some());
    }
}
