//! Running the lines of a stage.

use std::path::Path;
use std::process::Command;

use gradwire_tools::repository::turn;
use gradwire_tools::settings::TURN;
use gradwire_tools::step::succeed;

use super::plan::Does;
use super::stage::Stage;

/// Installs what a stage needs.
pub(super) fn install(stage: &Stage, root: &Path, kept: &Path) -> Result<(), String> {
    if stage.needs.is_empty() {
        return Ok(());
    }
    let mut install = Command::new(root.join(".ci/install"));
    install.args(stage.needs);
    succeed(within(&mut install, root, kept), "what it needs could not be installed")
}

/// Runs a stage's lines, and stops at the first that fails.
pub(super) fn lines(stage: &Stage, does: Does, root: &Path, kept: &Path) -> Result<(), String> {
    let program = std::env::current_exe().map_err(|e| format!("this program cannot be found: {e}"))?;
    let mut bash = Command::new("bash");
    bash.args(["-euo", "pipefail", "-c", &script(stage, does)]).env("XTASK", program);
    succeed(within(&mut bash, root, kept), "it failed")
}

/// The lines as one script, which says each before it runs.
fn script(stage: &Stage, does: Does) -> String {
    let mut script = "xtask() { \"$XTASK\" \"$@\"; }\n".to_owned();
    for setting in stage.settings {
        script.push_str(&format!("export {setting}\n"));
    }
    for line in stage.lines(does == Does::RunWhole) {
        script.push_str(&format!("echo {}\n{line}\n", quoted(&format!("$ {line}"))));
    }
    script
}

/// A word of bash, of which nothing is expanded.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// Sets the folder and the environment: the repository, and the folders of stamps and downloads.
fn within<'c>(command: &'c mut Command, root: &Path, kept: &Path) -> &'c mut Command {
    let downloads = kept.join("downloads");
    command.current_dir(root).env("GRADWIRE_CI_STAMPS", kept).env(TURN, turn(root));
    command.env("PIP_CACHE_DIR", downloads.join("pip")).env("npm_config_cache", downloads.join("npm"))
}

#[cfg(test)]
mod tests {
    use super::super::stage::Class;
    use super::*;

    #[test]
    fn lines_run_with_the_settings_until_one_fails() {
        let stage = Stage {
            name: "s",
            what: "",
            needs: &[],
            settings: &["WORD='a b'", "BOTH=$WORD!"],
            lines: &["test \"$BOTH\" = 'a b!'", "test -d \"$GRADWIRE_CI_STAMPS\""],
            whole: &["test \"$WORD\" = other", "exit 0"],
            class: Class::Always,
        };
        let folder = std::env::temp_dir();
        assert_eq!(lines(&stage, Does::Run, &folder, &folder), Ok(()));
        let told = lines(&stage, Does::RunWhole, &folder, &folder).unwrap_err();
        assert!(told.starts_with("it failed (exit status: 1)"), "{told}");
        let missing = Stage { needs: &["it"], ..stage };
        let told = install(&missing, &folder.join("nowhere"), &folder).unwrap_err();
        assert!(told.contains("could not be started"), "{told}");
    }

    #[test]
    fn what_is_said_is_quoted() {
        assert_eq!(quoted("$ a 'b' $c"), r"'$ a '\''b'\'' $c'");
    }
}
