//! What was measured, as the JSON file holds it.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::schema::{PeerRow, Row, Traded};

/// One run of the benchmark.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Report {
    /// The device that ran.
    pub(crate) device: String,
    /// Why that one.
    pub(crate) chosen: String,
    /// Why each backend that comes before it was passed over.
    pub(crate) why: Vec<String>,
    /// Bytes read plus bytes written each second by the device's own copy, in 10^9: the median of the run.
    pub(crate) copy_gbps: f64,
    /// The least and the most of the run, which tell how steady the machine was.
    pub(crate) copy_gbps_range: [f64; 2],
    /// Which gradient.
    pub(crate) source: String,
    /// Elements of the gradient that error, cosine and ratio are of.
    pub(crate) elements_compared: usize,
    /// Elements that rates are of.
    pub(crate) elements_timed: usize,
    /// Seconds that the whole run took.
    pub(crate) seconds: f64,
    /// A setting each.
    pub(crate) rows: Vec<Row>,
    /// What the peers' scripts wrote, if they ran.
    #[serde(default)]
    pub(crate) peers: Vec<PeerRow>,
    /// PowerSGD beside top-k and QSGD at the same bytes, where the gradient has matrices.
    #[serde(default)]
    pub(crate) traded: Vec<Traded>,
}

impl Report {
    /// Writes the JSON file.
    pub(crate) fn write(&self, path: &Path) -> Result<(), String> {
        let mut text = serde_json::to_string_pretty(self).map_err(|e| format!("the results do not fit JSON: {e}"))?;
        text.push('\n');
        std::fs::write(path, text)
            .map_err(|e| format!("{} could not be written: {e}; name another file with --json", path.display()))
    }
}

/// Makes the folder that a file goes into.
pub(crate) fn make_folder(file: &Path) -> Result<(), String> {
    let Some(folder) = file.parent() else { return Ok(()) };
    std::fs::create_dir_all(folder).map_err(|e| {
        format!("the folder {} could not be made: {e}; name another with --json and --chart", folder.display())
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::super::schema::{Parameters, Settings};
    use super::*;
    use crate::jobs::Feedback;
    use crate::jobs::list::bucket_text;

    /// A row to print, draw and write.
    pub(crate) fn row(codec: &str, bits: u32, bucket: Option<usize>) -> Row {
        Row {
            codec: codec.to_owned(),
            settings: Settings {
                label: format!("{bits} bit / {}", bucket_text(bucket)),
                dtype: "f32".to_owned(),
                recipe: Some("qsgd:bits=4".to_owned()),
                of: Parameters::Buckets {
                    bits,
                    levels: 7,
                    bucket,
                    norm: "max".to_owned(),
                    rounding: "stochastic".to_owned(),
                    packing: "none".to_owned(),
                },
            },
            device: "cpu".to_owned(),
            elements: 1 << 24,
            encode_gbps: Some(3100.25),
            decode_gbps: Some(7.5),
            decode_add_gbps: Some(0.0625),
            feedback_gbps: None,
            feedback: None,
            encode_share: Some(0.613),
            decode_share: Some(1.02),
            decode_add_share: Some(0.0042),
            feedback_share: None,
            ratio: 31.9876,
            relative_error: 3.2e-5,
            cosine: 0.987_654_321,
        }
    }

    fn of(codec: &str, label: &str, of: Parameters) -> Row {
        let settings = Settings { label: label.to_owned(), dtype: "f16".to_owned(), recipe: None, of };
        Row { settings, ..row(codec, 0, None) }
    }

    /// A row of top-k.
    pub(crate) fn top_k() -> Row {
        of("top-k", "1 %", Parameters::TopK { part: 0.01 })
    }

    /// A row of PowerSGD.
    pub(crate) fn step() -> Row {
        Row {
            encode_gbps: None,
            feedback_gbps: Some(8.5),
            ..of("PowerSGD", "rank 32", Parameters::PowerSgd { rank: 32 })
        }
    }

    /// A report around rows.
    pub(crate) fn report(rows: Vec<Row>) -> Report {
        Report {
            device: "cpu: CPU, 2 threads, AVX2".to_owned(),
            chosen: "asked for".to_owned(),
            why: vec!["cuda is not available".to_owned()],
            copy_gbps: 12.5,
            copy_gbps_range: [11.0, 13.0],
            source: "synthetic".to_owned(),
            elements_compared: 1000,
            elements_timed: 1 << 24,
            seconds: 61.5,
            rows,
            peers: Vec::new(),
            traded: Vec::new(),
        }
    }

    #[test]
    fn json_gives_back_what_was_written() {
        let with_feedback = Row {
            feedback_gbps: Some(1.0 / 3.0),
            feedback: Some(Feedback::Contractive),
            feedback_share: Some(0.1),
            ..row("QSGD max", 4, None)
        };
        let report = report(vec![row("uniform", 8, Some(512)), with_feedback, top_k(), step()]);
        let file = std::env::temp_dir().join(format!("gradwire-bench-{}/deep/report.json", std::process::id()));
        make_folder(&file).unwrap();
        report.write(&file).unwrap();
        let text = std::fs::read_to_string(&file).unwrap();
        std::fs::remove_dir_all(file.parent().and_then(Path::parent).unwrap()).unwrap();
        assert_eq!(serde_json::from_str::<Report>(&text).unwrap(), report);
        assert!(text.contains("\"feedback_gbps\": null") && text.contains("\"contractive\""));
    }
}
