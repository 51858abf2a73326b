//! Which backends this machine has: the last lines of `cargo xtask test`.

use gradwire::{BackendKind, Device};
use gradwire_tests::require::Required;

/// Prints which backends open and how many are missing, and fails if `GRADWIRE_REQUIRE` requests a missing one.
pub(crate) fn run() -> Result<(), String> {
    let required = Required::from_environment().map_err(|unmet| unmet.to_string())?;
    let (mut ran, mut missing, mut unmet) = (0, 0, Vec::new());
    for kind in BackendKind::ALL.into_iter().rev() {
        let opened = Device::of(kind);
        match &opened {
            Ok(device) => {
                println!("{:5} runs on {}", kind.name(), device.name());
                ran += 1;
            }
            Err(error) => {
                println!("{:5} is not tested: {error}", kind.name());
                missing += 1;
            }
        }
        unmet.extend(required.check(kind, &opened).err().map(|unmet| unmet.to_string()));
    }
    #[cfg(feature = "cuda")]
    for (name, opened) in gradwire_tests::traffic::machines() {
        match opened {
            Ok(device) => {
                println!("{:5} runs on {}", "PTX", device.name());
                ran += 1;
            }
            // The machine is always there, so this is an artifact that it refuses.
            Err(error) => unmet.push(format!("{name}: {error}")),
        }
    }
    println!("{ran} backends, {missing} missing");
    if unmet.is_empty() { Ok(()) } else { Err(unmet.join("\n       ")) }
}

#[cfg(test)]
mod tests {
    use gradwire_tests::{Depth, suite};
    use gradwire_tools::settings;

    /// xtask, which does not depend on the tests, sets the variables that they read.
    #[test]
    fn names_of_settings_are_those_of_the_tests() {
        assert_eq!((settings::DEPTH, settings::TURN, settings::CODEC), (Depth::VARIABLE, Depth::TURN, suite::CODEC));
        assert_eq!(settings::DEPTHS, Depth::NAMES.map(|(name, _)| name));
    }
}
