//! Which backends this machine has: the last lines of `cargo xtask test`.

use gradwire::{BackendKind, Device};
use gradwire_tests::require::Required;

/// Says which backends open and how many are missing, and fails where `GRADWIRE_REQUIRE` asks for one that this machine
/// lacks.
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
