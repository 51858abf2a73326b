//! Libraries that are looked for at run time, and the functions of them that an engine calls.

use std::path::PathBuf;

use gradwire::CollectiveError;
use libloading::Library;

/// A library to open: the engine's name in messages, the files to try, and advice if none is there.
pub(super) struct Wanted {
    pub(super) engine: &'static str,
    pub(super) files: Vec<PathBuf>,
    pub(super) advice: &'static str,
}

/// The files to try: the one that a setting or the environment names, or else the usual ones.
pub(super) fn files(named: Option<&PathBuf>, variable: &str, usual: &[&str]) -> Vec<PathBuf> {
    let variable = || std::env::var_os(variable).filter(|value| !value.is_empty()).map(PathBuf::from);
    match named.cloned().or_else(variable) {
        Some(path) => vec![path],
        None => usual.iter().map(PathBuf::from).collect(),
    }
}

/// What `resolve` makes of the first library that can be opened and has all of its functions.
///
/// The library is never closed, since NCCL and the driver have threads and handlers of their own.
///
/// # Safety
///
/// - Opening the libraries runs their initialisers; whoever names them answers for those.
/// - `resolve` looks up functions with the signatures that the library gives them.
pub(super) unsafe fn open<T>(
    wanted: &Wanted,
    resolve: unsafe fn(&Library) -> Result<T, &'static str>,
) -> Result<(T, String), CollectiveError> {
    let mut reasons = Vec::new();
    for path in &wanted.files {
        let name = path.display().to_string();
        // SAFETY: as the caller says.
        let library = match unsafe { Library::new(path.as_os_str()) } {
            Ok(library) => library,
            Err(error) => {
                let words = std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string);
                reasons.push(if words.starts_with(&name) { words } else { format!("{name}: {words}") });
                continue;
            }
        };
        // SAFETY: as the caller says.
        match unsafe { resolve(&library) } {
            Ok(table) => {
                std::mem::forget(library);
                return Ok((table, name));
            }
            Err(symbol) => reasons.push(format!("{name} has no function {symbol}")),
        }
    }
    let tried = wanted.files.iter().map(|path| path.display().to_string()).collect();
    let reason = format!("{}; {}", reasons.join("; "), wanted.advice);
    Err(CollectiveError::Unavailable { engine: wanted.engine, tried, reason })
}

/// Declares a table of functions that return a code, and the code that fills it. What stands under `[optional]` may be
/// missing from a library.
macro_rules! table {
    (
        $(#[$doc:meta])* $name:ident, $abi:literal:
        $($field:ident: $symbol:literal = fn($($arg:ty),*) $(-> $ret:ty)?;)*
        $([optional] $($late:ident: $late_symbol:literal = fn($($late_arg:ty),*) -> $late_ret:ty;)*)?
    ) => {
        $(#[$doc])*
        pub(super) struct $name {
            $(#[doc = concat!("`", $symbol, "`.")]
            pub(super) $field: unsafe extern $abi fn($($arg),*) $(-> $ret)?,)*
            $($(#[doc = concat!("`", $late_symbol, "`, where the library has it.")]
            pub(super) $late: Option<unsafe extern $abi fn($($late_arg),*) -> $late_ret>,)*)?
        }

        impl $name {
            /// # Safety
            ///
            /// The library's functions of these names have these signatures.
            pub(super) unsafe fn resolve(library: &libloading::Library) -> Result<Self, &'static str> {
                Ok(Self {
                    $($field: {
                        type Function = unsafe extern $abi fn($($arg),*) $(-> $ret)?;
                        // SAFETY: the caller answers for the library. An `Option` of a function is a pointer that may
                        // be null, which is what a look-up gives.
                        let found = unsafe { library.get::<Option<Function>>($symbol) };
                        found.ok().and_then(|found| *found).ok_or($symbol)?
                    },)*
                    $($($late: {
                        type Function = unsafe extern $abi fn($($late_arg),*) -> $late_ret;
                        // SAFETY: as above.
                        let found = unsafe { library.get::<Option<Function>>($late_symbol) };
                        found.ok().and_then(|found| *found)
                    },)*)?
                })
            }
        }
    };
}
pub(super) use table;
