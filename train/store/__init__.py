"""Runs and classifiers under any URL, written by one process at a time.

    --out s3://bucket/run  ->  ~/.cache/clozeline/5f0c.../run  ->  s3://bucket/run

Commands read and write the folder that `local_folder` opens for them; `remote_folder` downloads
what they read from the store, and uploads what they write.
"""
