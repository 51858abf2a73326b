//! Other implementations on the same machine: their scripts travel in the binary, and run where what they need is
//! installed.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use gradwire_tools::child::{Heard, listen};

use super::machine::find;
use super::schema::PeerRow;

/// The scripts of `benches/peers` that a report runs, and what they share.
const FILES: [(&str, &str); 7] = [
    ("gpu_common.py", include_str!("../../../../benches/peers/gpu_common.py")),
    ("gpu_topk.py", include_str!("../../../../benches/peers/gpu_topk.py")),
    ("gpu_quantize.py", include_str!("../../../../benches/peers/gpu_quantize.py")),
    ("gpu_triton.py", include_str!("../../../../benches/peers/gpu_triton.py")),
    (OF_MODELS, include_str!("../../../../benches/peers/gpu_powersgd.py")),
    ("gpu_cub_topk.py", include_str!("../../../../benches/peers/gpu_cub_topk.py")),
    ("gpu_cub_topk.cu", include_str!("../../../../benches/peers/gpu_cub_topk.cu")),
];
/// Those that are run, in this order.
pub(crate) const SCRIPTS: [&str; 5] = ["gpu_topk.py", "gpu_triton.py", "gpu_quantize.py", "gpu_cub_topk.py", OF_MODELS];
/// The one that knows models by the number of their elements.
pub(crate) const OF_MODELS: &str = "gpu_powersgd.py";
/// Their exit code where what they need is not installed.
const NOT_INSTALLED: i32 = 3;

/// How a script ended.
#[derive(Debug, PartialEq)]
pub(crate) enum Ran {
    Well,
    /// What it needs is not there.
    Absent(String),
    OutOfTime,
    Failed(String),
}

/// The folder to run them from: one that was named, or one in `out` into which they are written.
pub(crate) fn folder(named: Option<&Path>, out: &Path) -> Result<PathBuf, String> {
    if let Some(folder) = named {
        let missing: Vec<&str> =
            FILES.iter().map(|(name, _)| *name).filter(|name| !folder.join(name).is_file()).collect();
        if missing.is_empty() {
            return Ok(folder.to_path_buf());
        }
        return Err(format!(
            "{} has no {}; name a clone's benches/peers, or leave out --peers for the scripts in this binary",
            folder.display(),
            missing.join(", ")
        ));
    }
    let folder = out.join("peers");
    let failed = |e: std::io::Error| format!("the scripts could not be written to {}: {e}", folder.display());
    std::fs::create_dir_all(&folder).map_err(failed)?;
    FILES.iter().try_for_each(|(name, text)| std::fs::write(folder.join(name), text)).map_err(failed)?;
    Ok(folder)
}

/// Runs one script, which prints a row a line, and hands each row on as it comes.
pub(crate) fn run(
    script: &str,
    folder: &Path,
    device: &str,
    sizes: &[usize],
    deadline: Instant,
    mut each: impl FnMut(PeerRow),
) -> Ran {
    let python = match find("python3") {
        Ok(python) => python,
        Err(why) => return Ran::Absent(why),
    };
    let sizes: Vec<String> = sizes.iter().map(ToString::to_string).collect();
    let seconds = deadline.saturating_duration_since(Instant::now()).as_secs_f64();
    let mut command = Command::new(python);
    command
        .arg(folder.join(script))
        .args(["--device", device, "--sizes", &sizes.join(","), "--seconds"])
        .arg(format!("{seconds:.0}"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("PYTHONUNBUFFERED", "1");
    let mut notes = Vec::new();
    let ended = listen(&mut command, deadline, |heard| {
        if let Heard::Line(line) = heard {
            match serde_json::from_str::<PeerRow>(line) {
                Ok(row) => each(row),
                Err(_) => notes.push(line.to_owned()),
            }
        }
    });
    match ended {
        Err(why) => Ran::Failed(why),
        Ok(ended) if ended.out_of_time => Ran::OutOfTime,
        Ok(ended) if ended.well() => Ran::Well,
        Ok(ended) => {
            let last =
                ended.words.lines().next_back().or(notes.last().map(String::as_str)).unwrap_or("it said nothing");
            if ended.code == Some(NOT_INSTALLED) { Ran::Absent(last.to_owned()) } else { Ran::Failed(last.to_owned()) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scripts_in_the_binary_are_those_that_run() {
        assert!(SCRIPTS.iter().all(|script| FILES.iter().any(|(name, _)| name == script)));
        let out = std::env::temp_dir().join(format!("gradwire-report-peers-{}", std::process::id()));
        let written = folder(None, &out).unwrap();
        assert_eq!(folder(Some(&written), &out).unwrap(), written, "a folder that holds them all is taken");
        std::fs::remove_file(written.join("gpu_common.py")).unwrap();
        let error = folder(Some(&written), &out).unwrap_err();
        assert!(error.contains("has no gpu_common.py; name a clone's benches/peers"), "{error}");
        std::fs::remove_dir_all(out).unwrap();
    }

    #[cfg(unix)]
    #[test]
    fn rows_come_through_and_ends_are_told_apart() {
        if find("python3").is_err() {
            return;
        }
        let out = std::env::temp_dir().join(format!("gradwire-report-peer-{}", std::process::id()));
        std::fs::create_dir_all(&out).unwrap();
        let row = serde_json::to_string(&PeerRow { peer: "p".to_owned(), ..PeerRow::default() }).unwrap();
        let script = |name: &str, text: &str| std::fs::write(out.join(name), text).unwrap();
        script("good.py", &format!("print('a note')\nprint('{row}')"));
        script("absent.py", "import sys\nprint('torch is not installed', file=sys.stderr)\nsys.exit(3)");
        script("bad.py", "raise ValueError('no')");
        let deadline = Instant::now() + std::time::Duration::from_secs(60);
        let mut rows = Vec::new();
        let mut go = |name: &str| run(name, &out, "cpu", &[16], deadline, |row| rows.push(row));
        assert_eq!(go("good.py"), Ran::Well);
        assert_eq!(go("absent.py"), Ran::Absent("torch is not installed".to_owned()));
        assert_eq!(go("bad.py"), Ran::Failed("ValueError: no".to_owned()));
        assert_eq!(rows.len(), 1);
        std::fs::remove_dir_all(out).unwrap();
    }
}
