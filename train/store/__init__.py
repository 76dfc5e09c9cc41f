"""Runs and classifiers under any URL, written by one process at a time.

    --out s3://bucket/run  ->  ~/.cache/clozeline/5f0c.../run;   publish(run)  ->  s3://bucket/run

Commands read and write the local folder that `folder_option` gives them; `remote_folder` downloads
what is in the store, and uploads what is published.
"""
