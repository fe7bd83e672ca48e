//! The report: one page that needs nothing but itself.

use std::fmt::Write;

use plotly::Plot;

use super::charts::Section;
use super::claim::{Claim, Figure};
use super::verdict::Verdict;
use super::{Measurement, chart, interval};
use crate::report::cell;

const STYLE: &str = include_str!("style.css");
const SCRIPT: &str = include_str!("page.js");
const TAKES: &str = "a string takes any text";

/// The page.
pub(super) fn page(measurement: &Measurement, sections: &[Section]) -> String {
    let plan = measurement.plan();
    let mut text = String::new();
    text.push_str(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <link rel=\"icon\" href=\"data:,\">\n\
         <title>What the 1/√d_k does, claim by claim</title>\n",
    );
    write!(
        text,
        "<style>\n{STYLE}</style>\n</head>\n<body>\n<header>\n"
    )
    .expect(TAKES);
    text.push_str(
        "<button id=\"scheme\" type=\"button\" aria-label=\"Switch between light and dark\">\
         light / dark</button>\n<h1>What the 1/√d_k does, claim by claim</h1>\n",
    );
    let mode = match plan.mode {
        "quick" => {
            "The quick mode: the same code as the full one on fewer seeds, widths and steps. "
        }
        _ => "",
    };
    let interval = interval(plan);
    writeln!(
        text,
        "<p>{}{}</p>\n</header>\n<main>",
        escaped(mode),
        escaped(&interval)
    )
    .expect(TAKES);
    text.push_str(&claims_table(&measurement.claims));
    for section in sections {
        text.push_str(&section_of(section));
    }
    text.push_str(&all_figures(&measurement.claims));
    text.push_str(
        "</main>\n<footer><p>Beside this page: <code>claims.json</code>, and in \
         <code>figures/</code> each chart as SVG and its numbers as CSV.</p>\
         <noscript><p>The charts here need JavaScript.</p></noscript></footer>\n",
    );
    writeln!(text, "<script>{}</script>", library()).expect(TAKES);
    writeln!(text, "<script>\n{SCRIPT}</script>\n</body>\n</html>").expect(TAKES);
    text
}

fn claims_table(claims: &[Claim]) -> String {
    let mut text = String::from(
        "<section id=\"claims\">\n<h2>The claims</h2>\n<table class=\"claims\">\n<thead><tr>\
         <th scope=\"col\">#</th><th scope=\"col\">Claim</th><th scope=\"col\">Verdict</th>\
         <th scope=\"col\">Figures</th></tr></thead>\n<tbody>\n",
    );
    for claim in claims {
        let class = match claim.verdict {
            Verdict::Holds => "holds",
            Verdict::HoldsUnderCondition => "partly",
            Verdict::DoesNotHold => "not",
            Verdict::NotKnown => "unknown",
        };
        let condition = match &claim.condition {
            Some(condition) => format!("<p>{}</p>", escaped(condition)),
            None => String::new(),
        };
        let figures: String = claim
            .figures
            .iter()
            .filter(|figure| figure.shown)
            .map(|figure| {
                format!(
                    "<dt>{}</dt><dd>{}</dd>",
                    escaped(&figure.name),
                    escaped(&cell(&figure.spread))
                )
            })
            .collect();
        writeln!(
            text,
            "<tr id=\"claim-{id}\"><th scope=\"row\">{id}</th><td><strong>{}</strong><p>{}</p>\
             <details><summary>When it holds</summary><p>{}</p></details></td>\
             <td><span class=\"verdict {class}\">{}</span>{condition}</td><td><dl>{figures}</dl></td></tr>",
            escaped(claim.sentence),
            escaped(&claim.finding),
            escaped(claim.rule),
            claim.verdict.words(),
            id = claim.id,
        )
        .expect(TAKES);
    }
    text.push_str("</tbody>\n</table>\n</section>\n");
    text
}

fn section_of(section: &Section) -> String {
    let mut text = String::new();
    let claims = section
        .claims
        .iter()
        .map(|id| format!("<a href=\"#claim-{id}\">{id}</a>"));
    let claims: Vec<String> = claims.collect();
    writeln!(
        text,
        "<section id=\"{}\">\n<h2>{}</h2>\n<p>{} Claims {}.</p>\n<div class=\"charts\">",
        section.id,
        escaped(section.title),
        escaped(&section.text),
        claims.join(", ")
    )
    .expect(TAKES);
    for chart in &section.charts {
        writeln!(
            text,
            "<figure class=\"chart\"><figcaption>{title}</figcaption>\
             <div class=\"plot\" id=\"{id}\" role=\"img\" aria-label=\"{title}\"></div>\
             <script type=\"application/json\" data-plot=\"{id}\">{}</script></figure>",
            json_in_html(&chart::plot(chart).to_json()),
            title = escaped(&chart.title),
            id = chart.id,
        )
        .expect(TAKES);
    }
    text.push_str("</div>\n</section>\n");
    text
}

/// Each figure with its values, for those who want all of them.
fn all_figures(claims: &[Claim]) -> String {
    let mut text = String::from("<section id=\"figures\">\n<h2>All figures</h2>\n");
    for claim in claims {
        let rows: String = claim.figures.iter().map(row).collect();
        writeln!(
            text,
            "<details><summary>Claim {}: {} figures</summary><div class=\"scroll\"><table>\
             <thead><tr><th scope=\"col\">Figure</th><th scope=\"col\">Median (range)</th></tr></thead>\
             <tbody>{rows}</tbody></table></div></details>",
            claim.id,
            claim.figures.len()
        )
        .expect(TAKES);
    }
    text.push_str("</section>\n");
    text
}

fn row(figure: &Figure) -> String {
    format!(
        "<tr><td>{}</td><td>{}</td></tr>",
        escaped(&figure.name),
        escaped(&cell(&figure.spread))
    )
}

/// plotly.js, out of the scripts that the crate embeds; the other one sets formulas, of which there
/// are none.
fn library() -> String {
    let scripts = Plot::offline_js_sources();
    let start = scripts.find('>').map_or(0, |end| end + 1);
    let end = scripts.find("</script>").unwrap_or(scripts.len());
    scripts[start..end].to_string()
}

/// Text as it is, whatever is in it.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

/// JSON that no tag can end early.
fn json_in_html(json: &str) -> String {
    json.replace('<', "\\u003c")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claims::{charts, each, fixture};

    fn page() -> String {
        let results = fixture::results();
        let sections = charts::charts(&results);
        let measurement = Measurement {
            claims: each::claims(&results),
            measured: 0,
            jobs: 0,
            results,
        };
        super::page(&measurement, &sections)
    }

    #[test]
    fn the_page_has_a_row_a_claim_and_names_no_other_file_to_load() {
        let page = page();
        for id in 1..=11 {
            assert!(page.contains(&format!("<tr id=\"claim-{id}\">")), "{id}");
        }
        let without_library = page.replace(&library(), "");
        for reference in ["src=", "url(", "@import", "http:", "https:"] {
            assert!(!without_library.contains(reference), "{reference}");
        }
        assert!(page.contains("<span class=\"verdict partly\">holds under a condition</span>"));
    }

    #[test]
    fn the_library_is_there_once_and_whole() {
        let library = library();
        assert!(library.contains("plotly.js v3"));
        assert!(library.len() > 1_000_000);
        assert!(!library.contains("</script"));
        assert_eq!(page().matches("plotly.js v3").count(), 1);
    }

    #[test]
    fn text_and_json_cannot_end_their_elements() {
        assert_eq!(escaped("a < b & \"c\""), "a &lt; b &amp; &quot;c&quot;");
        assert_eq!(json_in_html("\"</script>\""), "\"\\u003c/script>\"");
    }
}
