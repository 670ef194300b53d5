"""What is simulated: machine, model, grid and job, as frozen data read from YAML.

Start with `twin.description.load`: `load_job("job.yaml")`, `load_machine("frontier")`.
"""
