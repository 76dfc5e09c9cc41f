"""Runs and classifiers under any URL, written by one process at a time.

    --out s3://bucket/run  ->  ~/.cache/clozeline/5f0c.../run, kept in sync; s3://bucket/run/.lease

Commands read and write the local folder (`folder_option`); `store_copy` keeps it and the store in
sync, and `store_lease` refuses a second writer.
"""
