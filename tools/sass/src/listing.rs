//! The instructions of a kernel that are executed, with how often and how they are scheduled.

use std::fmt::Write as _;

use super::count::inner_loop;
use super::inst::BYTES;
use super::machine::Launched;
use super::pipe::Pipe;

/// The inner loop's, or where nothing loops those that at least half as many warps execute as the most.
pub(super) fn listing(launched: &Launched, n: usize) -> String {
    let kernel = &launched.kernel.code;
    let most = launched.sites.iter().map(|site| site.warps).max().unwrap_or(0);
    let inner = inner_loop(launched);
    let what = match &inner {
        Some(inner) => format!("the loop at {:#06x}", inner.start as u32 * BYTES),
        None => "what most warps execute".to_owned(),
    };
    let mut text = format!("{}: {what}\n offset  warps per 1024 elements, pipe, stall, waits for, sets\n", kernel.name);
    for (at, (inst, site)) in kernel.insts.iter().zip(&launched.sites).enumerate() {
        let shown = inner.as_ref().map_or(site.warps * 2 >= most, |inner| inner.contains(&at));
        if !shown || site.warps == 0 {
            continue;
        }
        let control = inst.control;
        let waits: String = (0..6).filter(|i| control.wait >> i & 1 == 1).map(|i| i.to_string()).collect();
        let sets: String = [control.on_write, control.on_read].iter().filter(|i| **i < 6).map(u8::to_string).collect();
        let often = site.warps as f64 * 1024.0 / n as f64;
        let pipe = Pipe::of(inst).name();
        let (offset, stall) = (at as u32 * BYTES, control.stall);
        let _ = writeln!(text, "{offset:#07x} {often:6.2} {pipe:12} {stall:2} {waits:6} {sets:2}  {}", inst.text);
    }
    text
}
