//! The machine code of the kernels, against what the committed page says of it.

use std::path::Path;
use std::process::Command;

/// Registers of all kernels are those of `docs/sass.md`. So are loads in flight, instructions by pipe and the replay of a
/// fifth of the operations, whose machine code gives what the CPU gives. Without the wheels that `.ci/install ptxas` unpacks nothing is checked, and the test
/// says so. With GRADWIRE_REQUIRE_PTXAS their absence is a failure.
#[test]
fn the_machine_code_is_what_the_page_says() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let output = Command::new(env!("CARGO_BIN_EXE_xtask"))
        .args(["sass", "--check", "--drawn"])
        .current_dir(root)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    // As `SassError::Missing` and `SassError::OtherTools` begin.
    let missing = ["was not found under target/ptxas", "no ptxas that was found", "the page is made with ptxas"];
    if missing.iter().any(|part| said.contains(part)) {
        let required = std::env::var_os("GRADWIRE_REQUIRE_PTXAS").is_some();
        assert!(!required, "GRADWIRE_REQUIRE_PTXAS asks for the wheels: {said}");
        eprintln!("docs/sass.md was NOT checked: {said}");
        return;
    }
    assert!(output.status.success(), "{said}");
}
