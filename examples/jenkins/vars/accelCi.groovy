// A shared step: `accelCi()` has the commit of this job built and tested on the accelerator, and sets the job's status.
//
// Copy this file to `vars/` of a shared library. Options: url, credentials (the id of a secret text), location, trigger,
// variants, hours, reports, suite, strict. They reach the command as variables alone, so the script is always the same.
def call(Map options = [:]) {
    def environment = [
        "ACCEL_CI_BUILD_OUTPUT=accel-ci",
        "ACCEL_CI_BUILD_URL=${options.url ?: ''}",
        "ACCEL_CI_BUILD_LOCATION=${options.location ?: ''}",
        "ACCEL_CI_BUILD_TRIGGER=${options.trigger ?: ''}",
        "ACCEL_CI_BUILD_VARIANTS=${options.variants ?: ''}",
        "ACCEL_CI_BUILD_HOURS=${options.hours ?: '12'}",
        "ACCEL_CI_BUILD_REPORTS=${options.reports ?: ''}",
        "ACCEL_CI_BUILD_SUITE=${options.suite ?: ''}",
        "ACCEL_CI_BUILD_STRICT=${options.strict ?: 'false'}",
    ]
    def status = 2
    def build = {
        withEnv(environment) {
            status = sh(label: 'Build and test on the accelerator', returnStatus: true, script: '''
                rm -rf accel-ci
                exec accel-ci ci
            ''')
        }
    }
    if (options.credentials) {
        withCredentials([string(credentialsId: options.credentials, variable: 'ACCEL_CI_DAGSTER_TOKEN')]) { build() }
    } else {
        build()
    }
    archiveArtifacts artifacts: 'accel-ci/**', allowEmptyArchive: true
    junit testResults: 'accel-ci/*.xml', allowEmptyResults: true, skipMarkingBuildUnstable: true
    if (status != 0) {
        error("accel-ci ended with status ${status}: see accel-ci/summary.md")
    }
    if (readFile('accel-ci/conclusion.txt').trim() == 'neutral') {
        unstable('only upstream, flaky tests or the infrastructure failed: see accel-ci/summary.md')
    }
}
