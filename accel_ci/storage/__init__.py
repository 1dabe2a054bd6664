"""Files that are whole or absent: manifests, artifacts, objects in a folder or a bucket; also locks and archives."""
