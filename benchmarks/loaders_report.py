def write_report(results, path, page):
    pass
