//! `GRADWIRE_REQUIRE`: the backends that a run must have, so that a missing driver cannot pass as a success.
//!
//! The variable is a list with commas, such as `cpu,wgpu:SwiftShader`. What follows a colon must occur in the name of
//! the device that is opened, in either case: a machine with two drivers then tests the one that was meant.

use gradwire::{BackendKind, Device, Error};
use thiserror::Error as ThisError;

/// The environment variable that is read.
pub const VARIABLE: &str = "GRADWIRE_REQUIRE";

/// Why a run is not what was asked for.
#[derive(Debug, ThisError)]
#[non_exhaustive]
pub enum Unmet {
    /// The list has an item that says nothing.
    #[error(
        "{VARIABLE} has the item `{item}`, which is not a backend (cpu, wgpu or cuda), or one with a part of its device's \
         name, such as wgpu:SwiftShader; correct it"
    )]
    Unreadable {
        /// The item.
        item: String,
    },
    /// The backend cannot be opened.
    #[error("{VARIABLE} asks for {asked}, and this machine does not offer it: {found}")]
    Missing {
        /// The item of the list.
        asked: String,
        /// What opening it came to.
        found: String,
    },
    /// The backend runs on another device.
    #[error(
        "{VARIABLE} asks for {asked}, and the device found is `{found}`; choose the driver with VK_DRIVER_FILES, or the \
         adapter with WGPU_ADAPTER_NAME"
    )]
    Another {
        /// The item of the list.
        asked: String,
        /// The name of the device.
        found: String,
    },
}

/// A backend by its name.
///
/// # Errors
/// A message with the names, for any other.
pub fn parse_kind(name: &str) -> Result<BackendKind, String> {
    BackendKind::ALL
        .into_iter()
        .find(|k| k.name() == name)
        .ok_or_else(|| format!("`{name}` is none of cpu, wgpu and cuda"))
}

/// One item of the list.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Item {
    kind: BackendKind,
    /// A part of the device's name; empty if any device will do.
    part: String,
}

impl std::fmt::Display for Item {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.part.is_empty() {
            return self.kind.fmt(f);
        }
        write!(f, "{}:{}", self.kind, self.part)
    }
}

/// What a run requires.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Required(Vec<Item>);

impl Required {
    /// What the environment variable says; nothing if it is not set.
    ///
    /// # Errors
    /// [`Unmet::Unreadable`].
    pub fn from_environment() -> Result<Self, Unmet> {
        // A value that is not UTF-8 names no backend; read as one, it is refused below with the rest.
        Self::parse(&std::env::var_os(VARIABLE).unwrap_or_default().to_string_lossy())
    }

    /// Reads a list.
    ///
    /// # Errors
    /// [`Unmet::Unreadable`].
    pub fn parse(list: &str) -> Result<Self, Unmet> {
        let items = list.split(',').map(str::trim).filter(|item| !item.is_empty()).map(|item| {
            let unreadable = || Unmet::Unreadable { item: item.to_owned() };
            let (name, part) =
                item.split_once(':').map_or((item, None), |(name, part)| (name.trim(), Some(part.trim())));
            let kind = BackendKind::ALL.into_iter().find(|kind| kind.name() == name).ok_or_else(unreadable)?;
            // After a colon, nothing would be in every name: a variable that was left empty, and a check that is none.
            if part == Some("") {
                return Err(unreadable());
            }
            Ok(Item { kind, part: part.unwrap_or_default().to_owned() })
        });
        items.collect::<Result<_, _>>().map(Self)
    }

    /// Whether what opening a backend came to is what is required of it.
    ///
    /// # Errors
    /// [`Unmet::Missing`] and [`Unmet::Another`].
    pub fn check(&self, kind: BackendKind, opened: &Result<Device, Error>) -> Result<(), Unmet> {
        self.check_name(kind, opened.as_ref().map(Device::name))
    }

    fn check_name(&self, kind: BackendKind, opened: Result<&str, &Error>) -> Result<(), Unmet> {
        for item in self.0.iter().filter(|item| item.kind == kind) {
            match opened {
                Err(error) => return Err(Unmet::Missing { asked: item.to_string(), found: error.to_string() }),
                Ok(name) if !name.to_lowercase().contains(&item.part.to_lowercase()) => {
                    return Err(Unmet::Another { asked: item.to_string(), found: name.to_owned() });
                }
                Ok(_) => {}
            }
        }
        Ok(())
    }
}

/// Opens a backend for a test: the device, or why the machine has none where none is required.
///
/// # Panics
/// Where the environment requires what the machine does not offer, with what was asked and what was found.
pub fn open(kind: BackendKind) -> Result<Device, Error> {
    let opened = Device::of(kind);
    if let Err(unmet) = Required::from_environment().and_then(|required| required.check(kind, &opened)) {
        panic!("{unmet}");
    }
    opened
}

/// Every device that a test of all backends runs on: those of this machine, and one PTX machine.
///
/// # Panics
/// As [`open`].
pub fn devices() -> Vec<Device> {
    let of_machine = BackendKind::ALL.into_iter().filter_map(|kind| open(kind).ok());
    #[cfg(feature = "cuda")]
    let of_machine = of_machine.chain(crate::traffic::machines().next().and_then(|(_, device)| device.ok()));
    of_machine.collect()
}

#[cfg(test)]
mod tests {
    use BackendKind::{Cpu, Cuda, Wgpu};

    use super::*;

    fn parse(list: &str) -> Required {
        Required::parse(list).unwrap_or_else(|unmet| panic!("{unmet}"))
    }

    #[test]
    fn a_name_is_compared_where_one_is_asked_for() {
        let required = parse(" cpu, wgpu : swiftshader ,");
        assert_eq!(required, parse("cpu,wgpu:swiftshader"));
        assert!(required.check_name(Wgpu, Ok("SwiftShader Device (Subzero)")).is_ok());
        assert!(required.check_name(Cpu, Ok("any")).is_ok());
        let message = required.check_name(Wgpu, Ok("llvmpipe (LLVM 15)")).expect_err("another driver").to_string();
        assert!(message.contains("wgpu:swiftshader") && message.contains("`llvmpipe (LLVM 15)`"), "{message}");
    }

    #[test]
    fn a_missing_backend_fails_only_where_it_is_required() {
        let error = Error::Unavailable { backend: Cuda, reason: "no driver".to_owned() };
        assert!(parse("").check_name(Cuda, Err(&error)).is_ok());
        assert!(parse("cpu,wgpu").check_name(Cuda, Err(&error)).is_ok());
        let message = parse("cuda:H200").check_name(Cuda, Err(&error)).expect_err("required").to_string();
        assert!(message.contains("cuda:H200") && message.contains("no driver"), "{message}");
    }

    #[test]
    fn an_item_that_says_nothing_is_refused() {
        for list in ["vulkan", "cpu,wgpu:", "wgpu: ", ":llvmpipe", "cpu wgpu", "WGPU"] {
            assert!(matches!(Required::parse(list), Err(Unmet::Unreadable { .. })), "{list}");
        }
    }
}
