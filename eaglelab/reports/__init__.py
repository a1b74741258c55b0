"""From cases to pages: run the numbered notebooks, render each to one self-contained HTML file, list all runs on an index page.

    from eaglelab.reports.run import run_report, run_reports
    result = run_report("data/example/case.toml", only="02,04", parameters={"max_samples": 8})
    fleet = run_reports(["runs/a", "runs/b"], resume=True)

One file, one job. Running: `cases` (what was given, opened), `select` (which notebooks, which parameters), `machine` and `jobs` (cores, GPUs
and the queue over them), `kernel` (papermill's engine), `case_run` (one run of a case), `state` (what lies in its folder until it is
finished), `run` (all of it), `results` (a row for each case). Pages: `render` (executed notebook to page), `markdown` (prose and math), `parts`
and `shown` (escaped pieces of HTML, shared with live notebooks), `links` (findings and pages that text names),
`index`, `headline`, `key_numbers`. Afterwards: `stored` (a run on disk),
`summary` (`report.md`), `differences` and `compare` (two runs).
"""
