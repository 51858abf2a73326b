//! What this machine is, and which programs it has.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use gradwire_tools::child::lines_of;
use gradwire_tools::machine::{cpu, value};

use super::schema::{Answer, Machine};

/// Where NVIDIA's programs are besides the folders of PATH.
const FOLDERS: [&str; 5] = [
    "/usr/local/nvidia/bin",
    "/usr/local/cuda/bin",
    "/usr/local/cuda/compute-sanitizer",
    "/opt/cuda/bin",
    "/usr/lib/wsl/lib",
];

/// What is asked of nvidia-smi: once at the start, and of clocks while kernels are timed.
const AT_START: &str = "name,driver_version,pstate,clocks.sm,clocks.mem,clocks.max.sm,clocks.max.mem,power.limit,\
                        temperature.gpu,ecc.mode.current,mig.mode.current,memory.total,memory.used";
/// What is asked where that is refused: an older one does not know every name.
const LESS: &str = "name,driver_version,clocks.sm,clocks.mem,power.limit,temperature.gpu";
const WHILE_TIMING: &str = "clocks.sm,clocks.mem,power.draw,temperature.gpu,utilization.gpu";

/// A program's path; else where it was looked for.
pub(crate) fn find(program: &str) -> Result<PathBuf, String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(FOLDERS.iter().map(PathBuf::from));
    find_in(program, folders)
}

fn find_in(program: &str, folders: impl Iterator<Item = PathBuf>) -> Result<PathBuf, String> {
    let mut looked = Vec::new();
    for folder in folders {
        let file = folder.join(program);
        if is_program(&file) {
            return Ok(file);
        }
        let folder = folder.display().to_string();
        if !looked.contains(&folder) {
            looked.push(folder);
        }
    }
    Err(format!("{program} is in none of {}", looked.join(", ")))
}

fn is_program(file: &Path) -> bool {
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        file.metadata().is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
    }
    #[cfg(not(unix))]
    file.with_extension("exe").is_file()
}

/// This machine.
pub(crate) fn describe() -> Machine {
    let release = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
    let system = value(&release, "PRETTY_NAME", '=');
    Machine {
        os: format!("{}, {}", system.unwrap_or_else(|| std::env::consts::OS.to_owned()), std::env::consts::ARCH),
        cpu: cpu(),
        threads: std::thread::available_parallelism().map_or(1, usize::from),
        nvidia_smi: match smi(AT_START).or_else(|_| smi(LESS)) {
            Ok(lines) => Answer::Said(lines),
            Err(why) => Answer::Absent(why),
        },
        while_timing: Vec::new(),
    }
}

/// A line on clocks and power, where nvidia-smi is there.
pub(crate) fn clocks() -> Option<String> {
    smi(WHILE_TIMING).ok().map(|lines| lines.join("; "))
}

fn smi(what: &str) -> Result<Vec<String>, String> {
    let program = find("nvidia-smi")?;
    let mut command = Command::new(program);
    command.args([&format!("--query-gpu={what}"), "--format=csv,noheader"]);
    let lines = lines_of(&mut command, Duration::from_secs(10))?;
    Ok(lines.iter().map(|line| named(what, line)).collect())
}

/// Each value after the name of what it is.
fn named(names: &str, values: &str) -> String {
    let pairs = names.split(',').zip(values.split(','));
    pairs.map(|(name, value)| format!("{} {}", name.trim(), value.trim())).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_is_not_there_says_where_it_was_looked_for() {
        let folders = ["/no/such", "/nor/this", "/no/such"].map(PathBuf::from);
        let error = find_in("compute-sanitizer", folders.into_iter()).unwrap_err();
        assert_eq!(error, "compute-sanitizer is in none of /no/such, /nor/this");
        #[cfg(unix)]
        assert!(find_in("sh", [PathBuf::from("/bin")].into_iter()).is_ok());
    }

    #[test]
    fn values_stand_behind_their_names() {
        assert_eq!(named("clocks.sm,power.draw", "1980 MHz, 312.50 W"), "clocks.sm 1980 MHz, power.draw 312.50 W");
    }
}
