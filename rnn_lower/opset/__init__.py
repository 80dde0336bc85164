"""Bring a model to another opset: conversion, and the semantic changes that converters miss."""
