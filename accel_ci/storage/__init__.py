"""Named files that are whole or absent: manifests, artifacts, objects in a folder or a bucket, locks and archives."""
