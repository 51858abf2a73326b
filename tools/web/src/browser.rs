//! A browser without a window.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use gradwire_tools::checkout::root;

/// Names that Chromium and its kin go by; the environment variable comes first.
const VARIABLE: &str = "GRADWIRE_BROWSER";
const NAMES: [&str; 4] = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];

/// WebGPU on SwiftShader, so that every machine runs the same thing; and nothing of the browser that asks a network.
const FLAGS: [&str; 13] = [
    "--headless=new",
    "--no-sandbox",
    "--no-first-run",
    "--enable-unsafe-webgpu",
    "--enable-features=Vulkan",
    "--use-vulkan=swiftshader",
    "--use-webgpu-adapter=swiftshader",
    "--disable-vulkan-surface",
    "--disable-quic",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--enable-logging=stderr",
];

/// A browser that was started.
pub(super) struct Browser {
    child: Child,
    log: PathBuf,
}

/// Opens an address.
pub(super) fn open(address: &str) -> Result<Browser, String> {
    let folder = root().join("target/web/browser");
    let failed = |e| format!("{} could not be written to: {e}", folder.display());
    // A profile of an earlier run may be of another browser.
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).map_err(failed)?;
    let log = folder.join("log");
    let named = std::env::var(VARIABLE).ok();
    let names: Vec<&str> = named.as_deref().map_or(NAMES.to_vec(), |name| vec![name]);
    for name in &names {
        let output = File::create(&log).map_err(failed)?;
        let mut browser = Command::new(name);
        browser.args(FLAGS).arg(format!("--user-data-dir={}", folder.display())).arg(address);
        match browser.stdin(Stdio::null()).stdout(Stdio::null()).stderr(output).spawn() {
            Ok(child) => return Ok(Browser { child, log }),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
            Err(e) => return Err(format!("{name} could not be started: {e}")),
        }
    }
    Err(format!(
        "there is no {}; on Debian and Ubuntu install the package chromium, or name a browser in {VARIABLE}",
        names.join(", ")
    ))
}

impl Browser {
    /// Ends it; what it logged comes back.
    pub(super) fn close(mut self) -> String {
        // It is gone either way: what is left of it to say is in its log.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        // That there is no desktop is no news.
        log.lines().filter(|line| !line.contains("dbus")).collect::<Vec<_>>().join("\n")
    }
}
