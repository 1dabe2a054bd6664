#!/bin/sh
echo "waiting for a card that never answers"
exec sleep 300
