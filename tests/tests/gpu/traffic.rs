//! What the kernels move, against what the committed table says and against the floor.

use std::path::PathBuf;
use std::sync::OnceLock;

use gradwire::plan::Limits;
use gradwire::{CodecId, Dtype, Matrix, PowerSgd, Seed};
use gradwire_tests::traffic::{self, Row};
use gradwire_tests::{Depth, launches, low_rank, low_rank_models, low_rank_traffic, reads, selections, totals};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

#[test]
fn kernels_cost_what_the_documentation_says() {
    let (rows, selections) = (kernels(), selections());
    let page = read(traffic::PAGE);
    let part = page.split(LAUNCHES).next();
    if whole() {
        compare(&(traffic::table(rows) + &reads::table(selections)), part);
    } else {
        contained(&(traffic::table(rows) + &reads::table(selections)), part);
    }
    near_the_floor(rows);
    explained(rows);
    read_once(selections);
}

/// Counted once for all tests of this program.
fn kernels() -> &'static [Row] {
    static ROWS: OnceLock<Vec<Row>> = OnceLock::new();
    ROWS.get_or_init(|| traffic::count().expect("no fault"))
}

fn selections() -> &'static [reads::Row] {
    static ROWS: OnceLock<Vec<reads::Row>> = OnceLock::new();
    ROWS.get_or_init(|| reads::count(&has_turn).expect("no fault"))
}

/// Whether a selection is counted, by its number. They take minutes, so that by default one of five has its turn.
fn has_turn(row: usize) -> bool {
    Depth::of_tests().takes(row, 5)
}

/// Whether every selection is counted.
fn whole() -> bool {
    Depth::of_tests().sweeps()
}

fn steps() -> &'static [low_rank_traffic::Row] {
    static ROWS: OnceLock<Vec<low_rank_traffic::Row>> = OnceLock::new();
    ROWS.get_or_init(|| low_rank_traffic::count().expect("no fault"))
}

/// Whole operations beside their floors.
#[test]
fn operations_cost_what_the_documentation_says() {
    let all = totals::all(kernels(), selections(), steps());
    let page = read(traffic::PAGE);
    let (table, part) = (totals::table(&all), page.split(totals::HEADING).nth(1));
    let table = table.trim_start_matches(totals::HEADING);
    if whole() {
        compare(table, part)
    } else {
        contained(table, part)
    }
    let most = |codec: &str, op: &str, most: f64| {
        let found = all.iter().find(|p| p.codec == codec && p.op == op);
        if found.is_none() && codec.starts_with("top-k") && !whole() {
            return;
        }
        let times = found.unwrap_or_else(|| panic!("{codec}, {op} is counted")).work.multiple();
        assert!((1.0..=most).contains(&times), "{codec}, {op}: {times} of its floor");
    };
    for rank in ["PowerSGD rank 1", "PowerSGD rank 2", "PowerSGD rank 4", "PowerSGD rank 8"] {
        most(rank, "step f32", 1.1);
    }
    most("QSGD 4 bit / 512", "encode f32", 1.01);
    // Of top-k, bins that all blocks read again are a good part at 2^24; of 2^28 elements they are a sixteenth of that.
    for part in ["0.01", "0.1", "1"] {
        most(&format!("top-k {part} %"), "select f32", 1.2);
    }
    most("top-k 1 %", "select bf16", 1.25);
}

#[test]
fn powersgd_costs_what_the_documentation_says() {
    let steps = steps();
    let now = low_rank_traffic::table(steps);
    let page = read(traffic::PAGE);
    let part = page.split(totals::HEADING).next().and_then(|page| page.split(POWERSGD).nth(1));
    compare(now.trim_start_matches(POWERSGD), part);
    let promised = [low_rank_traffic::SHAPE, low_rank_traffic::ODD];
    for row in steps.iter().filter(|row| promised.contains(&row.shape) && row.rank <= 8) {
        assert!(row.multiple() <= 1.1, "{row:?}: {} times the floor", row.multiple());
    }
    assert!(steps.iter().all(|row| row.multiple() >= 1.0), "nothing is below its floor");
}

/// Whole models, and why one layer may stand for a hundred.
#[test]
fn models_cost_what_the_documentation_says() {
    let rows = low_rank_models::count().expect("no fault");
    let page = read(traffic::PAGE);
    let part = page.split(totals::HEADING).next().and_then(|page| page.split(low_rank_models::HEADING).nth(1));
    compare(low_rank_models::table(&rows).trim_start_matches(low_rank_models::HEADING), part);
    for row in &rows {
        assert!((1.0..1.1).contains(&row.multiple()) && row.launches == 14, "{row:?}");
    }
}

#[test]
fn a_layer_stands_for_all() {
    // Wider than a tile, so that most blocks have as much to do as those of a wide layer.
    let layers = |count| low_rank::transformer(count, 384);
    let [(bytes, instructions), two, eight] = [1, 2, 8].map(|count| {
        let (bytes, instructions) = low_rank_models::sum(&low_rank_models::launched(&layers(count)).expect("no fault"));
        (bytes as f64 / count as f64, instructions as f64 / count as f64)
    });
    // A tile finds its matrix in a list; the groups of a factor's entries and rows search the table, a step more each
    // time it doubles.
    for (b, i) in [two, eight] {
        assert!(
            (b / bytes - 1.0).abs() < 0.02 && (i / instructions - 1.0).abs() < 0.02,
            "{b} of {bytes}, {i} of {instructions}"
        );
    }
    let whole = low_rank::transformer(low_rank::LAYERS, low_rank::WIDTH);
    for (tensors, compressed) in [(low_rank::resnet50(), 54), (whole, 4 * low_rank::LAYERS)] {
        let matrices: Vec<&Matrix> = tensors.iter().filter(|tensor| tensor.columns > 1).collect();
        assert_eq!(matrices.len(), compressed);
        let steps = PowerSgd::rank(low_rank_models::RANK).resident(&tensors, Dtype::F32, Seed::new(1)).expect("valid");
        let rows: u64 = matrices.iter().map(|m| m.rows * u64::from(low_rank_models::RANK)).sum();
        assert_eq!(steps.factor_len() as u64, rows, "every matrix is compressed");
        let launches = |tensors: &[Matrix]| low_rank_models::launches(tensors, &Limits::NONE).expect("planned");
        assert_eq!(launches(&tensors), launches(&tensors[..tensors.len() / 2]), "no launch more for twice the tensors");
    }
}

#[test]
fn a_selection_takes_the_launches_that_the_documentation_says() {
    let rows = launches::count().expect("they are made");
    let page = read(traffic::PAGE);
    let part = page.split(POWERSGD).next().and_then(|page| page.split(LAUNCHES).nth(1));
    compare(launches::table(&rows).trim_start_matches(LAUNCHES), part);
    for row in &rows {
        // Fewer digits tell a half; blocks are one kernel.
        let most = match (row.dtype, row.feedback) {
            _ if row.what.starts_with("blocks") => (1, 1),
            (Dtype::Bf16, false) => (4, 9),
            _ => (4, 11),
        };
        assert_eq!((row.together.len(), row.apart.len()), most, "{row:?}");
    }
}

/// Where the page's part about launches begins,
const LAUNCHES: &str = "\n## Top-k: launches";
/// Where the page's part about PowerSGD begins.
const POWERSGD: &str = "\n## PowerSGD";

/// Fails with the lines that the page does not have.
fn contained(now: &str, page: Option<&str>) {
    let page = page.unwrap_or_default();
    let lines =
        |of: &dyn Fn(&str) -> bool| page.lines().filter(|line| of(line)).flat_map(|line| [line, "\n"]).collect();
    // With the page's other lines, only lines of `now` can differ.
    let others: String = lines(&|line| !now.lines().any(|own| own == line));
    compare(&(others + now), Some(page));
}

/// Fails with the lines that differ.
fn compare(now: &str, then: Option<&str>) {
    let then = then.unwrap_or_default();
    let changed: Vec<String> = now
        .lines()
        .filter(|line| !then.lines().any(|old| old == *line))
        .map(|line| format!("now   {line}"))
        .chain(then.lines().filter(|old| !now.lines().any(|line| line == *old)).map(|old| format!("before {old}")))
        .collect();
    assert!(
        changed.is_empty(),
        "kernels no longer cost what {} says. Where they cost more, find out why; else `cargo xtask traffic --write`:\n{}",
        traffic::PAGE,
        changed.join("\n")
    );
}

/// Top-k reads a gradient once and little more; whatever it is, four times at the most, with everything that it reads
/// beside the gradient. Of the little more, most are bins that every block reads from the L2 cache: that was measured
/// to be faster than to keep sums of them.
fn read_once(rows: &[reads::Row]) {
    let promised = |row: &&reads::Row| row.n == reads::SIZES[0] && !row.misled;
    let wanted = (0..reads::PROMISED.len() * reads::PARTS.len()).filter(|row| has_turn(*row));
    assert_eq!(rows.iter().filter(promised).count(), wanted.count());
    for row in rows {
        let most = match (promised(&row), row.part) {
            (true, part) if part <= 0.01 => 1.2,
            (true, _) => 1.4,
            (false, _) => 4.0,
        };
        assert!(row.reads() <= most, "{row:?}: {} reads", row.reads());
    }
    // What misleads the sample costs a read, or the test does not mislead it.
    for (name, _) in selections::MISLEADING {
        let row = rows.iter().find(|row| row.input == name && (row.part - 0.01).abs() < 1e-5);
        assert!(row.is_some() || !whole(), "{name} is counted");
        assert!(row.is_none_or(|row| row.reads() > 2.0), "{row:?}");
    }
}

/// The house's floor: 4.5 bytes and the scalars for QSGD's main setting, within 2 %.
fn near_the_floor(rows: &[Row]) {
    let main: Vec<&Row> = rows.iter().filter(|r| r.codec == "QSGD 4 bit / 512" && r.op == "encode f32").collect();
    let [main] = main[..] else { panic!("{} rows of the main setting", main.len()) };
    let scalars = 4.0 / 512.0;
    assert!((4.5 + scalars - main.floor).abs() < 1e-12, "{}", main.floor);
    assert!(main.moved() <= 1.02 * (4.5 + scalars), "{} bytes per element", main.moved());
    // Kernels whose traffic is not the gradient's, and those that look values up: why they move what they move is at
    // each.
    let apart = ["combine", "entropy_", "base3_", "elias_", "random_", "quantile_decode"];
    let kept = |row: &&Row| !apart.iter().any(|part| row.kernel.contains(part)) && row.op != "sum of 8";
    for row in rows.iter().filter(kept).filter(|row| row.codec != "quantile 64 / 4096" || row.op == "encode f32") {
        assert!(
            row.moved() <= 1.06 * row.floor,
            "{} {} {}: {} of {}",
            row.codec,
            row.op,
            row.kernel,
            row.moved(),
            row.floor
        );
    }
    assert!(rows.iter().all(|row| row.moved() >= row.floor), "nothing is below its floor");
}

/// A kernel that scatters its accesses, or whose lanes wait for a bank, says so where it is documented.
fn explained(rows: &[Row]) {
    let kernels = |folder| format!("kernels-gpu/src/kernels/{folder}");
    let sources: Vec<String> = [kernels(""), kernels("entropy")].iter().flat_map(|folder| sources(folder)).collect();
    let waits = |row: &Row| row.counts.iter().any(|c| c.bank_conflicts > 0);
    let wrong = rows.iter().flat_map(|row| {
        [(row.scattered() > 0.0, "Uncoalesced:"), (waits(row), "Conflicts:")].map(|(is, word)| (row, is, word))
    });
    for (row, _, word) in wrong.filter(|(_, is, _)| *is) {
        // What each codec has an entry point of is documented once: `fn $encode(` is `qsgd_encode`.
        let of_codec = |codec: &CodecId| {
            let prefix = codec.entries().encode.strip_suffix("encode")?;
            Some(format!("${}", row.kernel.strip_prefix(prefix)?))
        };
        let name = if row.kernel.contains("_fixed_") {
            // Those that decode by a preset are documented once for all of them.
            "$one".to_owned()
        } else {
            CodecId::ALL.iter().find_map(of_codec).unwrap_or_else(|| row.kernel.to_string())
        };
        let declares = |name: &str| {
            let declared = format!("    fn {name}(");
            let kernels = sources.iter().flat_map(|source| source.split("kernel! {"));
            kernels.filter(|kernel| kernel.contains(&declared)).collect::<Vec<_>>()
        };
        // A codec with kernels of its own documents each.
        let own = declares(&row.kernel);
        let texts = if own.is_empty() { declares(&name) } else { own };
        let documented = texts.iter().any(|text| text.contains(word));
        assert!(
            documented,
            "{} ({} {}): {} bytes per element scattered, or lanes that wait for a bank, and its documentation has no \
             {word}",
            row.kernel,
            row.codec,
            row.op,
            row.scattered()
        );
    }
}

/// The files of a folder.
fn sources(folder: &str) -> Vec<String> {
    let files = std::fs::read_dir(root().join(folder)).unwrap_or_else(|e| panic!("{folder}: {e}"));
    let paths = files.map(|file| file.unwrap_or_else(|e| panic!("{folder}: {e}")).path()).filter(|path| path.is_file());
    paths.map(|path| std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))).collect()
}
