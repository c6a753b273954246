from efl.paper import choose, defaults
from efl.runs.comparison import run_jobs

CASE = choose.Case("small", {"dataset": "digits", "clients": 10}, (0.5,), {"cohort": 4, "local_steps": 3}, "linear")


def test_rates_are_tried_for_all_and_elasticities_for_efl(tmp_path):
    jobs = defaults.plan([CASE], 1, tmp_path, rounds=4)
    tried = {job.label.split("|", 1)[1]: job.experiment for job in jobs}
    assert len(tried) == 5 + 3 + 3
    assert tried["FedAvg|3η"].training.learning_rate == 3 * tried["FedAvg|default"].training.learning_rate
    assert tried["EFL|10λ"].algorithm_settings["elasticity"] == 3.0
    assert "elasticity" not in tried["SCAFFOLD|default"].algorithm_settings


def test_the_table_says_what_the_defaults_lose(tmp_path):
    case = choose.Case(CASE.name, CASE.federation, (0.5,), CASE.training, CASE.model, {"FedAvg": ("fedavg", {})})
    jobs = defaults.plan([case], 1, tmp_path, rounds=4)
    run_jobs(jobs, 1)
    _, _, row = defaults.write(jobs, tmp_path).strip().splitlines()
    _, method, default, best, _, loss = (cell.strip() for cell in row.strip("|").split("|"))
    assert method == "FedAvg"
    assert abs(float(best) - float(default) - float(loss)) < 0.11
    assert float(loss) >= 0
