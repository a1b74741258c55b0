"""From a case to pages: run the numbered notebooks, render each to one self-contained HTML file, list all runs on an index page.

    from eaglelab.reports.run import run_report
    result = run_report("data/example/case.toml", only="02,04", parameters={"max_samples": 8})

One file, one job: `select` (which notebooks, which parameters), `kernel` (papermill's engine), `run` (one run of a case), `render`
(executed notebook to page), `markdown` (prose and math), `parts` (escaped pieces of HTML, shared with live notebooks), `index`.
"""
